"""`embstore size`: predicts the hit rates of caches of several sizes from a profile."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from embstore.cache.policies import POLICIES
from embstore.errors import InvalidArgumentError
from embstore_server.cli import output, parameters
from embstore_server.cli.extras import needing
from embstore_server.cli.flags import flag
from embstore_server.cli.output import AsJson
from embstore_server.setup.parsing import bytes_text
from embstore_tools.commands.hotset import Dim, OptimizerKind, ProfileFile, RowBytes, layout
from embstore_tools.commands.profile import Picture

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from embstore.layout import Layout
    from embstore.profiles.profile import Profile
    from embstore_server.sizing.prediction import HitRates
    from embstore_tools.profiling.plots import Plot

_CALLS_OF_FEW = 20
"""The number of calls into which samples are divided if there are few samples; the first call then
has 5 % of all accesses."""
_STEPS = 16
"""The number of steps that the demo announces."""


@needing("fast")
def size(
    *,
    profile: ProfileFile,
    dim: Dim = None,
    optimizer: OptimizerKind = None,
    row_bytes: RowBytes = None,
    policy: Annotated[
        list[str] | None,
        flag(f"{', '.join(POLICIES)}; several times.", "POLICY", show_default="all"),
    ] = None,
    target_hit_rate: Annotated[float, flag("Share of accesses that shall hit.", "SHARE")] = 0.9,
    warm_up: Annotated[
        float, flag("Share of the slots filled before the first call.", "SHARE")
    ] = 0.0,
    host_cache_bytes: Annotated[
        str | None,
        flag(
            "Level two of a GPU's cache: pinned memory of the host.", "BYTES", show_default="none"
        ),
    ] = None,
    lookahead: Annotated[
        int | None, flag("Steps of the working set.", "COUNT", min=1, show_default=str(_STEPS))
    ] = None,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Predict hit rates and traffic by size of the cache, from a profile.

    Hit rates are by access, and a row's first access misses. --json also shows hit rates by unique
    key. With --host-cache-bytes the command also shows hit rates of both levels together. The cache
    then has to contain the keys of level two's rows, too.
    """
    from embstore.profiles.profile import Profile
    from embstore_tools.profiling import plots

    if not 0 < target_hit_rate <= 1:
        raise InvalidArgumentError(
            f"--target-hit-rate: expected a share above 0, at most 1, found {target_hit_rate}"
        )
    of_rows = layout(dim, optimizer, row_bytes)
    if picture is not None:
        plots.check_drawing(picture)
        parameters.check_output("--picture", picture, [profile])
    loaded = Profile.load(profile)
    host_bytes = parameters.byte_count("--host-cache-bytes", host_cache_bytes) or 0
    found = _hit_rates(
        loaded, of_rows, policy, warm_up=warm_up, target=target_hit_rate, host_bytes=host_bytes
    )
    found["lookahead"] = _lookahead(loaded, found, lookahead)
    if picture is not None:
        plots.write_picture(picture, [_plot(found)])
    if as_json:
        output.show_json(found)
    else:
        _show(found)
        output.show_text(_of_one_call(loaded) or _answer(found))


def _hit_rates(
    profile: "Profile",
    of_rows: "Layout",
    policies: Sequence[str] | None,
    *,
    warm_up: float,
    target: float,
    host_bytes: int,
) -> dict[str, Any]:
    """Return hit rates by size for each policy, and the size that reaches the target."""
    import numpy as np

    from embstore_server.sizing.prediction import hit_rates
    from embstore_server.sizing.sizes import host_key_bytes, host_rows, level_bytes, looked_at
    from embstore_tools.profiling.plots import known_rows

    rows = sum(map(known_rows, profile.tables.values()))
    if not rows:
        advice = "" if profile.rate == 1 else ": profile again at a higher --rate"
        raise InvalidArgumentError(
            f"expected a profile with accesses, found none counted at a rate of {profile.rate:g}"
            f"{advice}"
        )
    slots = looked_at(rows)
    below = host_rows(of_rows.row_bytes, host_bytes, rows - slots)
    sizes = np.union1d(slots, slots + below)
    found: dict[str, Any] = {
        "rows": rows,
        "row_bytes": of_rows.row_bytes,
        "slots": slots.tolist(),
        "cache_bytes": level_bytes(of_rows, slots, below).tolist(),
        "host_rows": below.tolist(),
        "host_pinned_bytes": (below * of_rows.row_bytes).tolist(),
        "host_key_bytes": [host_key_bytes(count) for count in below.tolist()],
        "policies": {},
        "target_hit_rate": target,
        "needed": {},
    }
    names = list(dict.fromkeys(policies or POLICIES))
    with output.progress("policies", len(names)) as advance:
        for name in names:
            known = hit_rates(profile, sizes, name, warm_up)
            rates, both = known.at(slots), known.at(slots + below)
            found["policies"][name] = {
                "by_access": _known(rates.by_access),
                "by_unique": _known(rates.by_unique),
                "both_by_access": _known(both.by_access),
                "both_by_unique": _known(both.by_unique),
            }
            found["method"] = rates.method
            needed = _enough(profile, rates, name, warm_up, target)
            if needed is not None:
                one = np.array([needed])
                more = host_rows(of_rows.row_bytes, host_bytes, rows - one)
                size = int(level_bytes(of_rows, one, more)[0])
                found["needed"][name] = {"slots": needed, "cache_bytes": size}
            else:
                found["needed"][name] = None
            advance(1)
    return found


def _enough(
    profile: "Profile", rates: "HitRates", policy: str, warm_up: float, target: float
) -> int | None:
    """Return the number of slots that reaches the target; None if no size reaches it."""
    from embstore_server.sizing.prediction import hit_rates
    from embstore_server.sizing.sizes import between, slots_for

    closer = between(target, rates.slots.tolist(), rates.by_access.tolist())
    if closer is None:
        return None
    by_access = hit_rates(profile, closer, policy, warm_up).by_access
    return slots_for(target, closer.tolist(), by_access.tolist())


def _known(shares: "NDArray[np.float64]") -> list[float | None]:
    """Return shares as JSON values; unknown shares are null."""
    return [None if share != share else share for share in shares.tolist()]


def _lookahead(
    profile: "Profile", found: dict[str, Any], steps: int | None
) -> dict[str, Any] | None:
    """Return the traffic of look-ahead and the working set of `steps` steps; None if they are
    unknown."""
    import numpy as np

    from embstore_server.sizing.prediction import lookahead_traffic

    if profile.trace is None or not len(profile.trace.keys):
        return None
    traffic = lookahead_traffic(profile, np.array(found["slots"]), next(iter(found["policies"])))
    if steps is None:
        steps = min(_STEPS, len(traffic.working_sets))
    working_set = traffic.working_set(steps)
    return {
        "unique_rows": traffic.unique_rows,
        "fetched_rows": traffic.fetched_rows.tolist(),
        "fetched_bytes": (traffic.fetched_rows * found["row_bytes"]).tolist(),
        "steps": steps,
        "working_set_rows": working_set,
        "working_set_bytes": working_set * found["row_bytes"],
    }


def _show(found: dict[str, Any]) -> None:
    from embstore_tools.profiling import plots

    ahead = found["lookahead"]
    has_host = any(found["host_rows"])
    columns = ["cache", "slots", "of rows", *found["policies"]]
    columns += ["level two", *(f"{name}, both" for name in found["policies"])] if has_host else []
    columns += [] if ahead is None else ["fetched a step", "bytes"]
    lines = []
    for i, slots in enumerate(found["slots"]):
        line = [bytes_text(found["cache_bytes"][i]), slots, f"{slots / found['rows']:.2%}"]
        line += [f"{rates['by_access'][i]:.1%}" for rates in found["policies"].values()]
        if has_host:
            both = [f"{rates['both_by_access'][i]:.1%}" for rates in found["policies"].values()]
            line += [found["host_rows"][i], *both]
        if ahead is not None:
            line += [round(ahead["fetched_rows"][i]), bytes_text(round(ahead["fetched_bytes"][i]))]
        lines.append(line)
    output.show_rows(columns, lines)
    output.show_text("\n" + plots.text(_plot(found)))
    of_steps = "the profile has no recorded calls: hit rates are estimates from counts alone"
    if ahead is not None:
        of_steps = (
            f"with look-ahead every lookup hits; a step has {ahead['unique_rows']:,.0f} unique "
            f"rows, and {ahead['steps']} steps together {ahead['working_set_rows']:,.0f}, "
            f"{bytes_text(round(ahead['working_set_bytes']))}"
        )
    output.show_text("\n" + of_steps)
    if has_host:
        output.show_text(_of_host(found))


def _of_host(found: dict[str, Any]) -> str:
    """Return one sentence on the bytes that level two takes in the host's memory and in the
    GPU's."""
    rows, row_bytes = max(found["host_rows"]), found["row_bytes"]
    pinned, keys = max(found["host_pinned_bytes"]), max(found["host_key_bytes"])
    return (
        f"level two has up to {rows:,} rows in {bytes_text(pinned)} of pinned memory; their keys "
        f"and index take {bytes_text(keys)} of the GPU's memory, which count in the cache: "
        f"{keys / rows:.0f} bytes for a row of {row_bytes} bytes, {keys / pinned:.0%} as much"
    )


def _of_one_call(profile: "Profile") -> str:
    """Return advice if the recording consists of one call with all samples, and "" if there are
    several calls."""
    if profile.trace is None or profile.trace.calls != 1 or profile.samples is None:
        return ""
    batch = max(len(profile.samples) // _CALLS_OF_FEW, 1)
    return (
        "all samples are one recorded call, in which every row is new, so nothing hits: profile "
        f"them again with --batch {batch}, the samples of a call"
    )


def _plot(found: dict[str, Any]) -> "Plot":
    import numpy as np

    from embstore_tools.profiling.plots import Curve, Plot

    shares = np.array(found["slots"]) / found["rows"]
    curves = [
        Curve(name, shares, np.array(rates["by_access"]))
        for name, rates in found["policies"].items()
    ]
    return Plot("hit rate by access", "slots as a share of the rows", "hit rate", curves)


def _answer(found: dict[str, Any]) -> str:
    """Return one sentence on the cache size that is needed."""
    target, enough, never = f"{found['target_hit_rate']:.1%}", [], []
    for name, needed in found["needed"].items():
        if needed is None:
            most = found["policies"][name]["by_access"][-1]
            never.append(f"{name} reaches {most:.1%} with room for all rows")
        else:
            slots, size = needed["slots"], bytes_text(needed["cache_bytes"])
            enough.append(
                f"{size} under {name} ({slots:,} slots, {slots / found['rows']:.2%} of the rows)"
            )
    parts = [f"{target} of accesses hit with a cache of {', '.join(enough)}"] if enough else []
    parts += [f"{', '.join(never)}, not {target}"] if never else []
    return "; ".join(parts)
