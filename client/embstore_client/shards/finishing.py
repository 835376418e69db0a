"""Finishing a step on all shards.

A step is finished when all shards have finished it. Until then the step can be sent again; shards
that have already finished it are left out. If a trainer ends within a step, some shards may have
finished the step and others not, and the trainer's gradients are lost. Any other client that
continues gets an error that asks it to restore a checkpoint.

Rule 9 of contract.md refuses gradients that are not finite or too large. It may accept the
gradients of each rank, and still refuse the sum over the ranks. A shard that refuses a sum could
not notify the other shards in time. So a rank's gradients are refused here if a sum of such
gradients from all ranks might be refused: if they are beyond 1e38 / ranks or 7e16 / (ranks *
gradient_scale). For a trainer of one rank, the check is exact. Ranks that exchange their gradients
and apply the update themselves (`embstore_training.write_behind`) know whether rule 9 accepts the
sums, and send the result of their check.

Each shard compares the checksum of its own rows with the trainer's before it applies its part. If
the trainer has a wrong row, the shard of that row refuses the step, although the other shards,
whose rows were right, have applied it. Then the session ends, and the cluster has to be restored to
a checkpoint. Rejected: all shards compare before the first shard applies anything. That would cost
one more call per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from embstore import commands as c
from embstore.arithmetic import scale_sums
from embstore.arrays import as_rows, check_on_host, refusal, refused_gradient
from embstore.commands.joins import acknowledged
from embstore.errors import InvalidArgumentError
from embstore.results import AcknowledgedUpdate
from embstore.step_sums import summed_part
from embstore_client.shards.finite import are_small, refused
from embstore_client.shards.places import Splits
from embstore_client.shards.split import taken
from embstore_client.shards.steps import announced, torn

if TYPE_CHECKING:
    from embstore_client.shards.router import Call, Router


def update_step(router: Router, command: c.UpdateStep, call: Call) -> AcknowledgedUpdate:
    """Send one rank's gradients of a step: each shard gets the gradients of its keys."""
    place = router.places.of(command.member)
    known = place.steps.get(command.step)
    if known is None:
        return _repeated(router, command, call)
    step, places = known
    given = [_gradients(router, places, part) for part in command.tables]
    world_size = place.world_size or router.first(c.RenewLease(command.member)).world_size
    is_finite = command.is_finite
    if is_finite is None:
        is_finite = _is_finite(step, given, command.options, world_size)
    if not is_finite and command.options.on_nonfinite == "refuse":
        raise _refusal(step, given, command)
    commands: dict[int, c.UpdateStep] = {}
    for shard in range(len(router.shards)):
        tables = []
        for part in given:
            split = places[part.table]
            if part.positions is None:
                own = c.StepGradients(part.table, taken(part.gradients, split.of(shard)))
            else:
                mine, at = split.within(part.positions, shard)
                own = c.StepGradients(part.table, taken(part.gradients, mine), at)
            tables.append(own)
        commands[shard] = c.UpdateStep(
            command.member,
            command.step,
            tuple(tables),
            command.options,
            _checksum(command, places, shard),
            is_finite,
        )
    return _finished(router, commands, command, call)


def _checksum(command: c.UpdateStep, places: Splits, shard: int) -> int | None:
    """Return the checksum of a shard's rows; None: the command has no checksum by shard."""
    of_all = command.rows_checksum
    if of_all is None or isinstance(of_all, int):
        return None
    return of_all.of({name: split.of(shard) for name, split in places.items()})


def _gradients(router: Router, places: Splits, part: c.StepGradients) -> c.StepGradients:
    check_on_host(part.gradients, f"table {part.table!r}: ")
    if part.table not in places:
        raise InvalidArgumentError(
            f"expected gradients of announced tables, of {sorted(places)}, found {part.table!r}"
        )
    count = len(places[part.table])
    if part.inverse is not None:
        if len(part.inverse) and part.inverse.max() >= count:
            expected = f"inverse in [0, {count}), the announced keys"
            raise refusal(part.table, expected, part.inverse.max())
        part = summed_part(part, count)
    if part.positions is not None:
        if len(part.positions) and part.positions[-1] >= count:
            expected = f"positions below {count}, the number of announced keys"
            raise refusal(part.table, expected, part.positions[-1])
        count = len(part.positions)
    dim = router.tables.config_of(part.table, None).dim
    rows = as_rows(part.gradients, (count, dim), part.table, "gradients")
    return replace(part, gradients=rows)


def _is_finite(
    step: c.StepKeys, given: list[c.StepGradients], options: c.UpdateOptions, world_size: int
) -> bool:
    if all(are_small(part.gradients, world_size, options.gradient_scale) for part in given):
        return True
    return world_size == 1 and refused([_named(step, given)], options.gradient_scale) is None


def _named(step: c.StepKeys, given: list[c.StepGradients]) -> list[c.TableGradients]:
    keys = {table.table: table.keys for table in step.tables}
    return [
        c.TableGradients(
            part.table,
            None,
            keys[part.table] if part.positions is None else keys[part.table][part.positions],
            part.gradients,
        )
        for part in given
    ]


def _refusal(
    step: c.StepKeys, given: list[c.StepGradients], command: c.UpdateStep
) -> InvalidArgumentError:
    """Return the error for a rank's gradients that rule 9 refuses, or that are too large to be
    added to the gradients of other ranks."""
    found = refused([_named(step, given)], command.options.gradient_scale)
    if found is None:
        return InvalidArgumentError(
            f"step {command.step}: expected gradients whose sum over all ranks is finite for any "
            "gradients of the others, found larger ones; skip the step on all ranks, or give "
            'on_nonfinite="skip"'
        )
    (part,) = found.ranks[0].tables
    (gradient,) = scale_sums(part.gradients, command.options.gradient_scale)
    return refused_gradient(part.table, int(part.keys[0]), gradient)


def finish(router: Router, command: c.ReleaseStep | c.SkipStep, call: Call) -> AcknowledgedUpdate:
    """Release or skip a step on every shard."""
    commands = dict.fromkeys(range(len(router.shards)), command)
    return _finished(router, commands, command, call)


def _finished(
    router: Router,
    commands: Mapping[int, c.Command[AcknowledgedUpdate]],
    command: Any,
    call: Call,
) -> AcknowledgedUpdate:
    behind = router.places.of(command.member).behind(len(router.shards), command.step)
    is_partial = 0 < len(behind) < len(router.shards)
    if not router.places.may_send(command.member, command, is_partial=is_partial):
        raise torn(command.step)
    left = {shard: commands[shard] for shard in behind} or commands
    answers = list(router.each(left, call).values())
    router.places.finished(command.member, command.step)
    return cast(AcknowledgedUpdate, acknowledged(answers))


def _repeated(router: Router, command: c.UpdateStep, call: Call) -> AcknowledgedUpdate:
    """Return the answer for a step that all shards have finished."""
    facts = router.all(c.RenewLease(command.member))
    if min(one.last_step for one in facts) < command.step:
        announced(router, command)
    again = c.UpdateStep(command.member, command.step, (), command.options)
    return cast(AcknowledgedUpdate, acknowledged(router.all(again, call)))


def put_step_rows(router: Router, command: c.PutStepRows, call: Call) -> AcknowledgedUpdate:
    """Write the rows of a hot replica, the trainer's copy of hot rows, back to the shards.

    A shard may have the rows of this push already, if another shard was lost during an earlier
    attempt. In that case the shard's t is ahead of the t of the other shards, so a smaller number
    is added to the t of this shard.
    """
    splits = [router.split_keys(part.table, None, part.keys) for part in command.tables]
    parts = []
    for part in command.tables:
        config = router.tables.config_of(part.table, None)
        count, name = len(part.keys), part.table
        weights = as_rows(part.weights, (count, config.dim), name, "weights")
        state = as_rows(part.state, (count, config.state_dim), name, "state")
        parts.append(replace(part, weights=weights, state=state))
    with router.writing():
        ahead = [_ahead(router, part.table, call) for part in parts]
        commands = {
            shard: c.PutStepRows(
                command.member,
                tuple(
                    _part_of(part, split.of(shard), max(part.add_t - more[shard], 0))
                    for part, split, more in zip(parts, splits, ahead, strict=True)
                ),
            )
            for shard in range(len(router.shards))
        }
        return cast(AcknowledgedUpdate, acknowledged([*router.each(commands, call).values()]))


def _part_of(part: c.StepPut, own: Any, add_t: int) -> c.StepPut:
    return c.StepPut(part.table, part.keys[own], part.weights[own], part.state[own], add_t)


def _ahead(router: Router, table: str, call: Call) -> list[int]:
    """Return, for each shard, by how much its t of a table is above the lowest t of any shard."""
    found = [one.t for one in router.all(c.GetTable(table), call)]
    return [t - min(found) for t in found]


HANDLERS = {
    c.UpdateStep: update_step,
    c.ReleaseStep: finish,
    c.SkipStep: finish,
    c.PutStepRows: put_step_rows,
}
