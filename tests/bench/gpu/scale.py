"""The sizes of the GPU benchmark. The yardstick's call is the same in a quick run, which only
repeats it less often.
"""

from dataclasses import dataclass

from tests.bench.sizes import sized


@dataclass(frozen=True)
class Scale:
    """Sizes of every measurement."""

    emulated: bool = sized(False, emulated=True)
    seed: int = 20261121

    keys: int = sized(1_050_000, emulated=300)
    ranks: int = sized(1 << 28, emulated=1 << 12)
    """At an exponent of 1.05 a call has then about 350,000 unique keys."""
    zipf_exponent: float = 1.05
    dims: tuple[int, ...] = sized((128, 32), emulated=(12,))
    batches: int = sized(3, emulated=2)
    """Of the kernels, in turn; a step has `step_batches`."""
    slots: int = sized(26 << 20, quick=4 << 20, emulated=1024)
    slab_slots: int = sized(1 << 20, emulated=256)
    bag_keys: int = 20
    moved_rows: int = sized(80_000, emulated=40)
    """Keys that are erased, inserted, and selected as victims: misses of a call."""
    clocks: int = sized(64, emulated=3)
    """Different scores that slots have."""

    copy_bytes: int = sized(1 << 30, emulated=4096)
    cushion_bytes: int = sized(256 << 20, emulated=256)
    repeats: int = sized(20, quick=7, emulated=1)
    warm_ups: int = sized(3, emulated=0)

    step_batches: int = sized(8, quick=4, emulated=2)
    steps: int = sized(64, quick=16, emulated=2)
    cache_bytes: int = sized(6 << 30, emulated=1 << 20)

    footprint_batches: int = sized(8, emulated=20)
    """Their unique keys are the rows of the store that tiers are measured on."""
    written_keys: int = sized(250_000, emulated=300)
    """Keys of a call that writes rows before they are measured."""
    drawn_batches: int = sized(24, emulated=16)
    """Batches of a size, in turn: together they have nearly all rows."""
    moved_repeats: int = sized(5, quick=2, emulated=1)
    moved_keys: int = sized(400_000, emulated=100)
    """Keys of a lookup whose rows are all missing."""
    settle_steps: int = sized(24, quick=12, emulated=1)
    tier_steps: int = sized(40, quick=12, emulated=2)
    settle_s: float = 1.5
    promised_s: float = sized(8.0, quick=2.0, emulated=60.0)
    """Longest window of the goals' setting, in which a commit and a merge should end."""
    window_s: float = sized(3.0, quick=1.0, emulated=0.1)
    lookahead_window_s: float = sized(1.5, quick=1.0, emulated=0.1)
    computations_ms: tuple[float, ...] = sized((5.0, 0.0, 20.0), emulated=(5.0, 0.0))
    lookahead_steps: int = sized(4, emulated=2)
    fold_bytes: int = sized(64 << 20, emulated=4096)
    """A store's default."""
    pinned_bytes: int = sized(256 << 20, emulated=4096)

    call_keys: tuple[int, ...] = sized((2048, 65_536), emulated=(40,))
    """Of calls as a user makes them, beside `keys`."""

    host_keys: int = 2048
    host_calls: int = sized(200, emulated=100)
    torch_repeats: int = sized(12, quick=5)
    timeline_steps: int = sized(8, emulated=1)
    guard_rounds: int = sized(4, quick=2, emulated=1)
    guard_keys: int = sized(20_000, emulated=60)
