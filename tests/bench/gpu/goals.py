"""The benchmark's goals for the device."""

from tests.bench.gpu import tiers
from tests.bench.report import Goal

PROMISED = tiers.PROMISED.part


GOALS = (
    *(
        Goal(
            f"{verb}, dim {dim}: share of the ceiling",
            f"kernels/{dim}/verbs/{verb}/share",
            f">= {share:g}",
        )
        for dim, share in ((128, 0.85), (32, 0.75))
        for verb in ("gather of unique rows", "gather_rows", "scatter_rows")
    ),
    Goal(
        "probe of a call's unique keys", "kernels/128/verbs/probe/per_s", ">= 8 G keys/s", unit=1e-9
    ),
    Goal("the step, resident", "step/step/wall_ms", "<= 0.75 ms"),
    Goal("the step of 65,536 keys", "public/checkpoint/engine/65536/step_ms", "<= 0.2 ms"),
    Goal("the step of 2,048 keys", "public/checkpoint/engine/2048/step_ms", "<= 0.15 ms"),
    Goal(
        "a session's step of 65,536 keys, arrays of the GPU",
        "sessions/checkpoint/device/65536",
        "<= 1 ms",
    ),
    *(
        Goal(f"Python of {verb} of 2,048 keys", f"host/{verb}", "<= 0.1 ms")
        for verb in ("lookup", "its_update", "update")
    ),
    Goal(
        "the step, cache 0.7x the footprint, level two the rest", f"{PROMISED}/plain/ms", "<= 4 ms"
    ),
    Goal(
        "the exchange alone, each way",
        f"min {PROMISED}/moved/bytes_per_s/*",
        ">= 35 GB/s",
        unit=1e-9,
    ),
    Goal(
        "the worst step beside a commit and a merge : median",
        f"{PROMISED}/plain/disturbed_to_median",
        "<= 3 times",
    ),
    Goal(
        "a step that computes 5 ms, with look-ahead : 5 ms",
        f"{PROMISED}/look-ahead/5 ms/ratio",
        "<= 1.1 times",
    ),
    Goal("the step, cache 0.7x the footprint, no level two", "tiers-0.7-none/plain/ms", "<= 12 ms"),
    Goal("bytes of a slot beside its row", "step/memory/bytes_beside_a_row", "<= 40 bytes"),
    Goal("rows from storage", "tiers-0.7-none/moved/bytes_per_s/up", ">= 10 GB/s", unit=1e-9),
    Goal("optimizers with one digest on CPU and device", "sum digests/*/same", ">= 5"),
    Goal(
        "one digest at the yardstick, half the rows cached",
        "digests-large/rowwise_adagrad/same",
        ">= 1",
    ),
)
