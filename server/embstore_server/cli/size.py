"""`embstore size`: how much cache a profile's accesses need."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from embstore.errors import InvalidArgumentError
from embstore_server.cli import output
from embstore_server.cli.hotset import Dim, OptimizerKind, ProfileFile, RowBytes, layout
from embstore_server.cli.options import AsJson
from embstore_server.cli.output import bytes_text
from embstore_server.cli.profile import Picture

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embstore.cache.sizes import Layout
    from embstore.frequency.profile import Profile
    from embstore.frequency.sizing import HitRates, LookaheadTraffic
    from embstore_server.profiling.plots import Plot

_STEPS = 16
"""As many as the demo announces."""


@dataclass(frozen=True)
class _Found:
    """What was found out about a profile."""

    rows: int
    row_bytes: int
    cache_bytes: list[int]  # of each size
    rates: "dict[str, HitRates]"  # by policy, all of the same sizes
    traffic: "LookaheadTraffic | None"
    steps: int  # of the working set
    working_set: float  # rows that so many steps use together; 0.0 without traffic
    target: float
    needed: dict[str, dict[str, int] | None]  # by policy: slots and bytes; None: no size is enough

    @property
    def slots(self) -> "NDArray[np.int64]":
        return next(iter(self.rates.values())).slots

    @property
    def method(self) -> str:
        return next(iter(self.rates.values())).method


def size(
    *,
    profile: ProfileFile,
    dim: Dim = None,
    optimizer: OptimizerKind = None,
    row_bytes: RowBytes = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY", help="lru, lfu or rank; may be repeated.", show_default="all"
        ),
    ] = None,
    target_hit_rate: Annotated[
        float, typer.Option(metavar="SHARE", help="Of accesses that shall hit.")
    ] = 0.9,
    warm_up: Annotated[
        float, typer.Option(metavar="SHARE", help="Of the slots, filled before the first call.")
    ] = 0.0,
    lookahead: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="COUNT", help="Steps of the working set.", show_default=str(_STEPS)
        ),
    ] = None,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Tell how much cache is needed: hit rates and traffic by size, from a profile.

    Hit rates are by access, and a row's first access misses. Hit rates by unique key: --json.
    """
    from embstore.frequency.profile import Profile
    from embstore_server.profiling import plots

    if not 0 < target_hit_rate <= 1:
        raise InvalidArgumentError(
            f"--target-hit-rate: expected a share above 0, at most 1, found {target_hit_rate}"
        )
    of_rows = layout(dim, optimizer, row_bytes)
    if picture is not None:
        plots.check_picture(picture)
    found = _found(
        Profile.load(profile),
        of_rows,
        policy,
        warm_up=warm_up,
        steps=lookahead,
        target=target_hit_rate,
    )
    if picture is not None:
        plots.write_picture(picture, [_plot(found)])
    if as_json:
        output.show_json(_document(found))
        return
    _show(found)
    output.show_text(_answer(found))


def _found(
    profile: "Profile",
    of_rows: "Layout",
    policies: Sequence[str] | None,
    *,
    warm_up: float,
    steps: int | None,
    target: float,
) -> _Found:
    from embstore.frequency.sizing import POLICIES, hit_rates, lookahead_traffic
    from embstore_server.profiling.curves import known_rows
    from embstore_server.profiling.sizes import CacheBytes, looked_at, row_bytes_of

    names = list(dict.fromkeys(policies or POLICIES))
    rows = sum(map(known_rows, profile.tables.values()))
    if not rows:
        advice = "" if profile.rate == 1 else ": profile again at a higher --rate"
        raise InvalidArgumentError(
            f"expected a profile with accesses, found none counted at a rate of {profile.rate:g}"
            f"{advice}"
        )
    slots = looked_at(rows)
    cache_bytes = CacheBytes(of_rows).of
    rates, traffic = {}, None
    needed: dict[str, dict[str, int] | None] = {}
    with output.progress("policies", len(names) + 1) as advance:
        for name in names:
            rates[name] = hit_rates(profile, slots, name, warm_up)
            count = _enough(profile, rates[name], name, warm_up, target)
            of = None if count is None else {"slots": count, "cache_bytes": cache_bytes(count)}
            needed[name] = of
            advance(1)
        if profile.trace is not None and len(profile.trace.keys):
            traffic = lookahead_traffic(profile, slots, names[0])
    if steps is None:
        steps = _STEPS if traffic is None else min(_STEPS, len(traffic.working_sets))
    return _Found(
        rows,
        row_bytes_of(of_rows),
        [cache_bytes(int(count)) for count in slots],
        rates,
        traffic,
        steps,
        0.0 if traffic is None else traffic.working_set(steps),
        target,
        needed,
    )


def _enough(
    profile: "Profile", rates: "HitRates", policy: str, warm_up: float, target: float
) -> int | None:
    """Return the slots that reach the target; None, if no size does."""
    from embstore.frequency.sizing import hit_rates
    from embstore_server.profiling.sizes import between, slots_for

    closer = between(target, rates.slots.tolist(), rates.by_access.tolist())
    if closer is None:
        return None
    by_access = hit_rates(profile, closer, policy, warm_up).by_access
    return slots_for(target, closer.tolist(), by_access.tolist())


def _document(found: _Found) -> dict[str, Any]:
    return {
        "rows": found.rows,
        "row_bytes": found.row_bytes,
        "method": found.method,
        "slots": found.slots.tolist(),
        "cache_bytes": found.cache_bytes,
        "policies": {
            name: {"by_access": _known(rates.by_access), "by_unique": _known(rates.by_unique)}
            for name, rates in found.rates.items()
        },
        "lookahead": _traffic_document(found),
        "target_hit_rate": found.target,
        "needed": found.needed,
    }


def _known(shares: "NDArray[np.float64]") -> list[float | None]:
    """Return numbers as JSON knows them: what is not known is null."""
    return [None if share != share else share for share in shares.tolist()]


def _traffic_document(found: _Found) -> dict[str, Any] | None:
    traffic = found.traffic
    if traffic is None:
        return None
    return {
        "unique_rows": traffic.unique_rows,
        "fetched_rows": traffic.fetched_rows.tolist(),
        "fetched_bytes": (traffic.fetched_rows * found.row_bytes).tolist(),
        "steps": found.steps,
        "working_set_rows": found.working_set,
        "working_set_bytes": found.working_set * found.row_bytes,
    }


def _show(found: _Found) -> None:
    from embstore_server.profiling import plots

    traffic = found.traffic
    columns = ["cache", "slots", "of rows", *found.rates]
    if traffic is not None:
        columns += ["fetched a step", "bytes"]
    lines = []
    for i, slots in enumerate(found.slots.tolist()):
        line = [bytes_text(found.cache_bytes[i]), slots, f"{slots / found.rows:.2%}"]
        line += [f"{rates.by_access[i]:.1%}" for rates in found.rates.values()]
        if traffic is not None:
            fetched = round(float(traffic.fetched_rows[i]))
            line += [fetched, bytes_text(fetched * found.row_bytes)]
        lines.append(line)
    output.show_rows(columns, lines)
    output.show_text("")
    output.show_text(plots.text(_plot(found)))
    output.show_text("")
    output.show_text(_traffic_text(found))


def _traffic_text(found: _Found) -> str:
    traffic = found.traffic
    if traffic is None:
        return "the profile has no recorded calls: hit rates are estimates from counts alone"
    rows = round(found.working_set)
    return (
        f"with look-ahead every row of a step is there; a step has {traffic.unique_rows:,.0f} "
        f"unique rows, and {found.steps} steps together {rows:,}, "
        f"{bytes_text(rows * found.row_bytes)}"
    )


def _plot(found: _Found) -> "Plot":
    from embstore_server.profiling.plots import Curve, Plot

    shares = found.slots / found.rows
    curves = [Curve(name, shares, rates.by_access) for name, rates in found.rates.items()]
    return Plot("hit rate by access", "slots as a share of the rows", "hit rate", curves)


def _answer(found: _Found) -> str:
    """Return one sentence that says how much cache is needed."""
    enough = [
        f"{bytes_text(of['cache_bytes'])} under {name} ({of['slots']:,} slots, "
        f"{of['slots'] / found.rows:.2%} of the rows)"
        for name, of in found.needed.items()
        if of
    ]
    never = [
        f"{name} reaches {found.rates[name].by_access[-1]:.1%} with room for all rows"
        for name, of in found.needed.items()
        if not of
    ]
    target = f"{found.target:.1%}"
    said = [f"{target} of accesses hit with a cache of {', '.join(enough)}"] if enough else []
    said += [f"{', '.join(never)}, not {target}"] if never else []
    return "; ".join(said)
