"""How much is measured. The yardstick's call is the same in a quick run: only less often."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes of every measurement."""

    emulated: bool = False
    seed: int = 20261121

    keys: int = 1_050_000
    ranks: int = 1 << 28
    """At an exponent of 1.05 a call has then about 350,000 unique keys."""
    zipf_exponent: float = 1.05
    dims: tuple[int, ...] = (128, 32)
    batches: int = 3
    """Of the kernels, in turn; a step has `step_batches`."""
    slots: int = 26 << 20
    slab_slots: int = 1 << 20
    bag_keys: int = 20
    moved_rows: int = 80_000
    """Keys that are erased, inserted, and selected as victims: misses of a call."""
    clocks: int = 64
    """Different scores that slots have."""

    copy_bytes: int = 1 << 30
    cushion_bytes: int = 256 << 20
    repeats: int = 20
    warm_ups: int = 3

    step_batches: int = 8
    steps: int = 64
    cache_bytes: int = 6 << 30

    footprint_batches: int = 8
    """Their unique keys are the rows of the store that tiers are measured on."""
    written_keys: int = 250_000
    """Keys of a call that writes rows before they are measured."""
    drawn_batches: int = 24
    """Batches of a size, in turn: together they have nearly all rows."""
    moved_repeats: int = 5
    moved_keys: int = 400_000
    """Keys of a lookup whose rows are all missing."""
    settle_steps: int = 24
    tier_steps: int = 40
    settle_s: float = 1.5
    promised_s: float = 8.0
    """Longest window of the goals' setting, in which a commit and a merge should end."""
    window_s: float = 3.0
    lookahead_window_s: float = 1.5
    computations_ms: tuple[float, ...] = (5.0, 0.0, 20.0)
    lookahead_steps: int = 4
    fold_bytes: int = 64 << 20
    """A store's default."""
    pinned_bytes: int = 256 << 20

    call_keys: tuple[int, ...] = (2048, 65_536)
    """Of calls as a user makes them, beside `keys`."""

    host_keys: int = 2048
    host_calls: int = 200
    torch_repeats: int = 12
    timeline_steps: int = 8
    guard_rounds: int = 4
    guard_keys: int = 20_000


full = Scale
"""What the goals are stated for."""


def quick() -> Scale:
    """Return the yardstick's sizes with fewer slots and samples."""
    return Scale(
        slots=4 << 20,
        repeats=7,
        step_batches=4,
        steps=16,
        moved_repeats=2,
        settle_steps=12,
        tier_steps=12,
        promised_s=2.0,
        window_s=1.0,
        lookahead_window_s=1.0,
        torch_repeats=5,
        guard_rounds=2,
    )


def emulated() -> Scale:
    """Return a scale that shows in seconds that everything runs; its figures mean nothing."""
    return Scale(
        emulated=True,
        keys=300,
        ranks=1 << 12,
        dims=(12,),
        batches=2,
        slots=1024,
        slab_slots=256,
        moved_rows=40,
        clocks=3,
        copy_bytes=4096,
        cushion_bytes=256,
        repeats=1,
        warm_ups=0,
        step_batches=2,
        steps=2,
        cache_bytes=1 << 20,
        footprint_batches=20,
        written_keys=300,
        drawn_batches=16,
        moved_repeats=1,
        moved_keys=100,
        settle_steps=1,
        tier_steps=2,
        promised_s=60.0,
        window_s=0.1,
        lookahead_window_s=0.1,
        computations_ms=(5.0, 0.0),
        lookahead_steps=2,
        fold_bytes=4096,
        pinned_bytes=4096,
        call_keys=(40,),
        host_calls=100,
        timeline_steps=1,
        guard_rounds=1,
        guard_keys=60,
    )
