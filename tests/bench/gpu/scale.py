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

    cached_share: float = 0.8
    cached_settle_steps: int = 40
    cached_steps: int = 40
    written_keys: int = 250_000
    """Of a call that writes rows before they are measured."""
    held_rows: int = 400_000
    held_repeats: int = 5
    pinned_bytes: int = 256 << 20

    call_keys: tuple[int, ...] = (2048, 65_536)
    """Of calls as a user makes them, beside `keys`."""

    host_keys: int = 2048
    host_calls: int = 200
    torch_repeats: int = 12
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
        cached_settle_steps=12,
        cached_steps=12,
        held_repeats=2,
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
        cached_settle_steps=2,
        cached_steps=2,
        written_keys=100,
        held_rows=50,
        held_repeats=1,
        pinned_bytes=4096,
        call_keys=(40,),
        host_calls=100,
        guard_rounds=1,
        guard_keys=60,
    )
