"""Small wrong changes to the code, each of which tests of `make test` find: `make mutations`.

Each is made in a copy of the tree, where the tests that are to fail are run. A mutation that they
pass is named at the end, and so is one whose text is no longer in its file. Numbers behind
`python -m tests.mutations` choose some.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
FOLDERS = "embstore", "proto", "server", "client", "tests"
FILES = "pyproject.toml", "README.md"
PYTEST = "-q", "-x", "-rfE", "-p", "no:cacheprovider", "-m", "not slow"
"""As `make test` chooses, in one process, to the first test that fails."""


class Mutation(NamedTuple):
    """A wrong change, and tests that find it."""

    what: str
    file: str
    old: str
    new: str
    tests: str
    """Files or tests, below tests/."""


MUTATIONS = [
    Mutation(
        "gradients of a key are summed in chunks of 63",
        "embstore/arithmetic/compiled.py",
        "CHUNK_OCCURRENCES = 64",
        "CHUNK_OCCURRENCES = 63",
        "kernels/test_sum_by_key.py",
    ),
    Mutation(
        "a row that was written leaves the cache without being logged",
        "embstore/cache/eviction.py",
        "        dirty = np.flatnonzero(here.dirty)\n        if len(dirty) and",
        "        dirty = np.flatnonzero(here.dirty)[:0]\n        if len(dirty) and",
        "conformance/writes/test_update.py",
    ),
    Mutation(
        "an update without keys does not count",
        "embstore/tables/writes.py",
        "    _write(named, tables, [1] * len(tables), stages)",
        "    _write(named, tables, [min(1, sum(len(p[1]) for p in parts))] * len(tables), stages)",
        "conformance/writes/test_empty_calls.py",
    ),
    Mutation(
        "rows stay in the cache when a checkpoint is restored",
        "embstore/tables/tables.py",
        "        for pool in list(self.pools.values()):\n"
        "            pool.tables.clear()\n"
        "            self._leave_if_empty(pool)\n"
        "        self.by_id.clear()\n",
        "        self.by_id.clear()\n",
        "conformance/durability/test_restore.py",
    ),
    Mutation(
        "the first command of a segment of the log is not done again",
        "embstore/storage/command_records.py",
        "            yield Record(head.kind, head.command, body, file.path, head.life)\n",
        "            if number == self.begin.segment or self.end.offset > PAGE_BYTES:\n"
        "                yield Record(head.kind, head.command, body, file.path, head.life)\n",
        "unit/test_recovery.py unit/test_command_files.py",
    ),
    Mutation(
        "of numbers that shards answer the first counts alone",
        "embstore/commands/joins.py",
        "    return sum(answers)\n",
        "    return one\n",
        "unit/test_joins.py",
    ),
    Mutation(
        "shards get repeated keys in the other order",
        "client/embstore_client/shards/rows.py",
        "    own = split.of(shard)\n    gradients = taken(part.gradients, own)\n",
        "    own = split.of(shard)[::-1]\n    gradients = taken(part.gradients, own)\n",
        "unit/test_shards.py",
    ),
    Mutation(
        "repeated keys of a call count as one access",
        "client/embstore_client/shares.py",
        "        counts = accesses(part.counts, inverse, len(keys))\n",
        "        counts = np.ones(len(keys), np.uint32)\n",
        "service/test_keys_that_seem_unique.py",
    ),
    Mutation(
        "a call of a step waits for other ranks no longer than any call",
        "client/embstore_client/members.py",
        "                call.timeout_s = self._timeout_s + place.rank_timeout_s\n",
        "                call.timeout_s = self._timeout_s\n",
        "service/test_sessions_client.py",
    ),
    Mutation(
        "assign sets the state to 0",
        "embstore/tables/writes.py",
        "    state = np.full((len(weights), table.config.state_dim), initial, VALUE)",
        "    state = np.full((len(weights), table.config.state_dim), 0 * initial, VALUE)",
        "conformance/writes/test_assign.py",
    ),
    Mutation(
        "the t of an update is one behind",
        "embstore/tables/writes.py",
        "            table.config.optimizer, table.t + 1, rate, table.dim",
        "            table.config.optimizer, max(table.t, 1), rate, table.dim",
        "conformance/writes/test_update.py",
    ),
    Mutation(
        "of two tables of one layout the second's blocks are not hashed again",
        "embstore/cache/followers.py",
        "        for note, table_id in self._notes.items():",
        "        for note, table_id in [*self._notes.items()][:1]:",
        "conformance/tables/test_digest.py",
    ),
    Mutation(
        "a sparse row that is dirty and was logged counts twice in the digest",
        "embstore/tables/sparse_digest.py",
        "                    keys = keys[self._numbers_of(keys) >= self._count]",
        "                    keys = keys[self._numbers_of(keys) >= 0]",
        "unit/test_sparse_digest.py",
    ),
    Mutation(
        "the sum of hashes of sparse rows loses a carry",
        "embstore/arithmetic/compiled_digest.py",
        "        with_carry = one + carry",
        "        with_carry = one",
        "kernels/test_row_hashes.py",
    ),
    Mutation(
        "rows are sent early that an unfinished step has",
        "embstore/lookahead/step.py",
        "part.previous[low:high] <= last_step)",
        "part.previous[low:high] <= last_step + 1)",
        "conformance/sessions/test_early.py",
    ),
    Mutation(
        "a commit forgets what clients were answered",
        "embstore/tables/command_log.py",
        "            for name, client in answers.clients.items()\n        ]\n        head = {",
        "            for name, client in answers.clients.items()\n        ][:0]\n        head = {",
        "unit/test_remembered_answers.py",
    ),
    Mutation(
        "rows of keys 2**32 apart begin alike",
        "embstore/arithmetic/compiled.py",
        "    c0, c1, c2, c3 = row_key & _WORD, row_key >> _SHIFT_32, block, stream",
        "    c0, c1, c2, c3 = row_key & _WORD, row_key & np.uint64(0), block, stream",
        "kernels/test_initialize.py",
    ),
    Mutation(
        "a fold keeps the oldest record of a row",
        "embstore/storage/segment.py",
        "    last = np.append(keys[1:] != keys[:-1], True) if len(keys)",
        "    last = np.append(True, keys[1:] != keys[:-1]) if len(keys)",
        "conformance/durability/test_merges.py::test_a_fold_keeps_the_newest_of_several_records_of_a_row",
    ),
    Mutation(
        "a run that waits for nothing misses another rank's update",
        "client/embstore_training/write_behind/rows.py",
        "                    if number > rows.last_step and name in updates:",
        "                    if number > rows.last_step + 1 and name in updates:",
        "conformance/sessions/test_write_behind.py",
    ),
    Mutation(
        "a row that comes up stays in the index of level two",
        "embstore/cache/exchange.py",
        "two.index.exchange(come_keys, left_keys",
        "two.index.exchange(come_keys[:0], left_keys",
        "unit/test_level_two.py",
    ),
    Mutation(
        "a rank without a key adds 0.0 to its sum",
        "embstore/arithmetic/sums.py",
        "        present[ids] = True\n    return sums\n",
        "        present[ids] = True\n    return sums + np.float32(0)\n",
        "conformance/writes/test_update_ranks.py",
    ),
    Mutation(
        "a merge of runs keeps the oldest record of a row",
        "embstore/storage/copying.py",
        "    last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]",
        "    last = np.append(True, keys[1:] != keys[:-1])[: len(keys)]",
        "unit/test_storage_merge.py",
    ),
    Mutation(
        "a dirty row is clean once it is in level two",
        "embstore/kernels/exchange.cu",
        "                *dirty_below = left_dirty;\n",
        "                *dirty_below = 0;\n",
        "unit/test_write_back_level_two.py",
    ),
    Mutation(
        "what an index takes beyond the budget stays",
        "embstore/cache/index.py",
        "_larger(self.capacity), memory, slot_count)\n                    self._grew()\n",
        "_larger(self.capacity), memory, slot_count)\n",
        "unit/test_index_refusals.py",
    ),
    Mutation(
        "an update that a GPU was given whole does not count",
        "embstore/tables/writes.py",
        "        for table in tables if is_done else ():\n            table.t += 1\n",
        "",
        "conformance/writes/test_update.py",
    ),
]


def copied(place: Path) -> None:
    """Copy what the tests need."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, place / name, ignore=ignored)
    for name in FILES:
        shutil.copy2(ROOT / name, place)


def outcome(mutation: Mutation, place: Path) -> str:
    """Make a change in the copy, run the tests, and take it back; "": they found it."""
    file = place / mutation.file
    text = file.read_text("utf-8")
    if text.count(mutation.old) != 1:
        return "its text is not there, or not once"
    file.write_text(text.replace(mutation.old, mutation.new), "utf-8")
    tests = [str(place / "tests" / name) for name in mutation.tests.split()]
    paths = [str(place / name) for name in ("", "server", "client", "proto")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "pytest", *PYTEST, *tests]
    try:
        done = subprocess.run(
            command, cwd=place, env=environment, capture_output=True, text=True, check=False
        )
    finally:
        file.write_text(text, "utf-8")
    if done.returncode == 1:
        lines = done.stdout.splitlines()
        failed = next(line for line in lines if line.startswith(("FAILED", "ERROR")))
        sys.stdout.write(failed[:160] + "\n")
        return ""
    said = done.stdout + done.stderr
    return "its tests pass" if done.returncode == 0 else f"its tests did not run:\n{said}"


def main(numbers: list[str]) -> int:
    """Try the mutations, all or some by number; return how many were not found."""
    missed = []
    with tempfile.TemporaryDirectory(prefix="embstore-") as directory:
        place = Path(directory) / "tree"
        copied(place)
        for number, mutation in enumerate(MUTATIONS, 1):
            if numbers and str(number) not in numbers:
                continue
            sys.stdout.write(f"{number:3} {mutation.what}: ")
            sys.stdout.flush()
            if why := outcome(mutation, place):
                missed.append(number)
                sys.stdout.write(f"NOT FOUND: {why}\n")
    sys.stdout.write(f"not found: {missed or 'none'}\n")
    return len(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
