"""The vectors of docs/contract.md, read from the page: reference, arithmetic and engine keep them.

A table of the reference model and one of an open store have the same verbs, so one list of commands
is run on both. Vectors of single rules go to the functions of `tests.reference` and
`embstore.arithmetic`. An optimizer is tested once `embstore.config` has it.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

import embstore
from embstore import arithmetic
from embstore.arithmetic.compiled_digest import add_row_hashes, leaves_of_sums, row_sums
from embstore.config import OPTIMIZERS, Normal, RowWiseAdagrad, Sgd, Uniform, default_seed
from embstore.errors import InvalidArgumentError
from tests import reference, rules
from tests.hashed_ids import HASHED, HashedId, printed
from tests.style.sources import ROOT

fp32 = np.float32
PAGE = (ROOT / "docs" / "contract.md").read_text()
_, VECTORS_PART = PAGE.split("\n## Vectors\n")
G = np.arange(1, 13).astype(fp32).reshape(3, 4) * fp32(0.1)
THIRDS = np.full((130, 1), 1 / 3, fp32)
TENTHS = np.arange(1, 71).astype(fp32) * fp32(0.1)
FOUR_KEYS = 0, 255, 256, 2**40 - 1
FOUR_SPARSE_KEYS = np.array([0, 1, 2**63, 2**64 - 2], np.uint64).view(np.int64)
ROW_5 = np.array([5])
SPARSE_KEYS = np.array([2**63 + 5, 171, 2**64 - 2], np.uint64).view(np.int64)


class Vector(NamedTuple):
    """A row of one of the page's tables of vectors."""

    name: str
    given: str
    value: str

    @property
    def parameters(self) -> dict[str, float | bool]:
        pairs = (pair.split("=") for pair in self.given.strip("`").split())
        return {name: value == "true" or float(value) for name, value in pairs}


VECTORS = [Vector(*row) for row in re.findall(r"^\| `(.+?)` \| (.+) \| `(.+)` \|$", PAGE, re.M)]
OF_OPTIMIZERS = [vector for vector in VECTORS if vector.given.startswith("`")]
OF_RULES = {vector.name: vector for vector in VECTORS if vector not in OF_OPTIMIZERS}


def bits(values: Any) -> str:
    """Return fp32 values as the page prints them."""
    return words(np.asarray(values, fp32).reshape(-1).view(np.uint32))


def words(values: Any) -> str:
    return " ".join(f"{int(word):08x}" for word in np.asarray(values).reshape(-1))


@pytest.fixture(params=["reference", "engine"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "reference":
        yield reference.ReferenceStore()
        return
    with embstore.open(tmp_path / "store", device="cpu", cache_bytes=1 << 20) as opened:
        yield opened


def table_of(store: Any, kind: str, parameters: dict[str, Any]) -> Any:
    return store.create_table(
        "v",
        dim=4,
        rows=3,
        optimizer=OPTIMIZERS[kind](**parameters),
        initializer=Uniform(-0.1, 0.1),
        seed=7,
    )


def updated(store: Any, kind: str, parameters: dict[str, Any]) -> Any:
    if kind not in OPTIMIZERS:
        pytest.skip(f"embstore.config has no optimizer {kind!r}")
    table = table_of(store, kind, parameters)
    table.update([2, 0, 2], G)
    table.update([2], G[:1])
    return table


def part_of(table: Any, row: int, part: str) -> Any:
    """Return a row's weights, or the half of its state that the page calls z or n."""
    weights, state = table.read_rows([row])
    if part == "w":
        return weights
    z, n = np.split(state, 2, axis=1)
    return {"z": z, "n": n}[part]


@pytest.mark.parametrize("vector", OF_OPTIMIZERS, ids=lambda vector: vector.name)
def test_updated_table_is_as_the_page_says(vector, store):
    if vector.name.startswith("digest"):
        table = updated(store, vector.name.removeprefix("digest "), vector.parameters)
        assert table.digest() == vector.value
        return
    kind, row, part = re.fullmatch(r"(\w+)(?: \w+)? row (\d) (\w)", vector.name).groups()
    table = updated(store, kind, vector.parameters)
    assert bits(part_of(table, int(row), part)) == vector.value


def test_identities_are_as_the_page_says():
    identities = [text.replace("\n", "") for text in re.findall(r"```json\n(.*?)```", PAGE, re.S)]
    kinds = [v for v in OF_OPTIMIZERS if v.name.startswith("digest")]
    assert len(identities) == len(kinds) == 3
    for vector, identity in zip(kinds, identities, strict=True):
        table = table_of(reference.ReferenceStore(), vector.name.split()[1], vector.parameters)
        assert table.config.identity_json() == identity.encode()


def scaled(store: Any) -> Any:
    table = table_of(store, "sgd", {"learning_rate": 0.05})
    table.update([2, 0, 2], G, gradient_scale=1 / 3)
    return table.lookup([2])


def ranks(row: int) -> Callable[[Any], Any]:
    def looked_up(store: Any) -> Any:
        table = table_of(store, "sgd", {"learning_rate": 0.05})
        shares = [{"v": ([2, 0], G[:2])}, {"v": ([1], G[:1])}, {"v": ([2], G[2:])}]
        store.update_ranks(shares, gradient_scale=0.25)
        return table.lookup([row])

    return looked_up


def pooled(mode: str, weights: Any = None) -> Callable[[Any], Any]:
    def looked_up(store: Any) -> Any:
        table = table_of(store, "sgd", {"learning_rate": 0.05})
        return table.lookup_pooled([2, 0, 2], [0, 3], mode, weights)

    return looked_up


COMMANDS = {
    "scale row 2": scaled,
    "ranks row 0": ranks(0),
    "ranks row 1": ranks(1),
    "ranks row 2": ranks(2),
    "pooled sum": pooled("sum"),
    "pooled mean": pooled("mean"),
    "pooled weights": pooled("sum", np.array([0.5, 2, -1 / 3], fp32)),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_give_the_rows_of_the_page(name, store):
    assert bits(COMMANDS[name](store)) == OF_RULES[name].value


PI = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], (0xA4093822, 0x299F31D0)


def largest_accepted(count: int, dim: int, is_accepted: Callable[[Any], bool]) -> str:
    """Return the largest fp32 that `count` of `dim` elements may be, as the page prints it."""
    low, high = 0, 0x7F800000
    while high - low > 1:
        middle = (low + high) // 2
        gradient = np.zeros(dim, np.uint32)
        gradient[:count] = middle
        low, high = (middle, high) if is_accepted(gradient.view(fp32)) else (low, middle)
    return f"{low:08x}"


def accepted(count: int, dim: int) -> tuple[Callable[[], str], Callable[[], str]]:
    def by_arithmetic(gradient: Any) -> bool:
        return not arithmetic.unaccepted(np.zeros(1, np.int64), gradient[None])

    return (
        lambda: largest_accepted(count, dim, rules.is_accepted),
        lambda: largest_accepted(count, dim, by_arithmetic),
    )


def sparse_table(store: Any) -> Any:
    """Return the page's sparse table."""
    table = store.create_table(
        "v",
        dim=4,
        optimizer=RowWiseAdagrad(learning_rate=0.05, epsilon=1e-8),
        initializer=Uniform(-0.1, 0.1),
        seed=7,
        key_space="sparse",
    )
    table.update(SPARSE_KEYS, G)
    table.update(SPARSE_KEYS[:1], G[:1])
    return table


def sparse(
    found: Callable[[dict[int, bytes], str], str],
) -> tuple[Callable[[], str], Callable[[], str]]:
    """Return what is found in leaves and digest of the page's sparse table."""

    def by_reference() -> str:
        table = sparse_table(reference.ReferenceStore())
        return found(table.leaves(), table.digest())

    def by_arithmetic() -> str:
        table = sparse_table(reference.ReferenceStore())
        padded = np.zeros((3, 8), fp32)
        padded[:, :5] = np.hstack(table.read_rows(SPARSE_KEYS))
        sums = row_sums()
        add_row_hashes(7, SPARSE_KEYS, padded, 5, sums)
        blocks, leaves = leaves_of_sums([sums])
        digest = arithmetic.root(table.config.identity_json(), table.t, blocks, leaves)
        named = zip(blocks.tolist(), leaves, strict=True)
        return found({block: leaf.tobytes() for block, leaf in named}, digest)

    return by_reference, by_arithmetic


def hashed(name: str) -> tuple[Callable[[], str], Callable[[], str]]:
    def by_library(one: HashedId) -> int:
        value = one.value.encode() if isinstance(one.value, str) else to_bytes(one.value)
        found = xxh3_64_intdigest(value, 0 if one.feature is None else default_seed(one.feature))
        found = 0 if found == 2**64 - 1 else found
        return found if one.rows is None else found % one.rows

    def by_package(one: HashedId) -> int:
        found = embstore.hash_ids([one.value], feature=one.feature, rows=one.rows)
        return int(found.view(np.uint64)[0])

    return (
        lambda: printed([by_library(one) for one in HASHED[name]], name),
        lambda: printed([by_package(one) for one in HASHED[name]], name),
    )


def to_bytes(number: int) -> bytes:
    return (number % 2**64).to_bytes(8, "little")


RULES: dict[str, tuple[Callable[[], str], Callable[[], str]]] = {
    "philox zero": (
        lambda: words(rules.philox([0] * 4, (0, 0))),
        lambda: words(arithmetic.philox4x32(np.zeros(4, np.uint64), (0, 0))),
    ),
    "philox pi": (
        lambda: words(rules.philox(*PI)),
        lambda: words(arithmetic.philox4x32(np.array(PI[0], np.uint64), PI[1])),
    ),
    "uniform": (
        lambda: bits(rules.initial_weights(Uniform(-0.01, 0.01), 7, 5, 8)),
        lambda: bits(arithmetic.initial_rows(Uniform(-0.01, 0.01), 7, ROW_5, 8)),
    ),
    "normal": (
        lambda: bits(rules.initial_weights(Normal(0, 0.02), 7, 5, 4)),
        lambda: bits(arithmetic.initial_rows(Normal(0, 0.02), 7, ROW_5, 4)),
    ),
    "partition": (
        lambda: " ".join(str(rules.partition(7, key, "dense")) for key in FOUR_KEYS),
        lambda: " ".join(map(str, arithmetic.partitions(7, np.array(FOUR_KEYS), "dense"))),
    ),
    "sparse uniform": (
        lambda: bits(rules.initial_weights(Uniform(-0.01, 0.01), 7, 2**63 + 5, 8)),
        lambda: bits(arithmetic.initial_rows(Uniform(-0.01, 0.01), 7, SPARSE_KEYS[:1], 8)),
    ),
    "sparse partition": (
        lambda: " ".join(
            str(rules.partition(7, key, "sparse"))
            for key in FOUR_SPARSE_KEYS.view(np.uint64).tolist()
        ),
        lambda: " ".join(map(str, arithmetic.partitions(7, FOUR_SPARSE_KEYS, "sparse"))),
    ),
    "sparse leaf 1006": sparse(lambda leaves, _: leaves[1006].hex()),
    "sparse leaf 530": sparse(lambda leaves, _: leaves[530].hex()),
    "sparse digest": sparse(lambda _, digest: digest),
    "default seed": (lambda: str(rules.default_seed("v")), lambda: str(default_seed("v"))),
    "sum over occurrences": (
        lambda: bits(rules.sum_occurrences(list(THIRDS))),
        lambda: bits(arithmetic.sum_by_key(np.zeros(130, np.int32), 1, THIRDS)),
    ),
    "sequential sum": (
        lambda: bits(rules.sum_sequentially(list(THIRDS))),
        lambda: bits(np.add.accumulate(THIRDS)[-1]),
    ),
    "sum over dim": (
        lambda: bits(rules.sum_over_dim(TENTHS)),
        lambda: bits(arithmetic.sum_over_dim(TENTHS[None])),
    ),
    "accepted one of 4": accepted(1, 4),
    "accepted 4 of 4": accepted(4, 4),
    "accepted 100 of 100": accepted(100, 100),
    **{name: hashed(name) for name in HASHED},
}


@pytest.mark.parametrize("name", RULES)
def test_functions_of_a_rule_give_the_value_of_the_page(name):
    by_reference, by_arithmetic = RULES[name]
    assert by_reference() == by_arithmetic() == OF_RULES[name].value


def test_a_sparse_table_has_the_digest_of_the_page(store):
    """And, in a store, its leaves."""
    table = sparse_table(store)
    assert table.digest() == OF_RULES["sparse digest"].value
    if isinstance(store, reference.ReferenceStore):
        return
    for block, leaf in table.leaves():
        assert leaf == OF_RULES[f"sparse leaf {block}"].value


def test_the_bits_of_a_sparse_key_count_and_one_key_is_none():
    rows = []
    for keys in (SPARSE_KEYS, SPARSE_KEYS.view(np.uint64), SPARSE_KEYS.tolist()):
        table = reference.ReferenceStore().create_table(
            "v", dim=4, optimizer=Sgd(0.5), initializer=Uniform(-1, 1), key_space="sparse"
        )
        initial = rules.initial_weights(Uniform(-1, 1), table.config.seed, 2**63 + 5, 4)
        assert bits(table.lookup(keys)[0]) == bits(initial)
        table.update(keys, G)
        rows.append((table.digest(), bits(table.lookup(SPARSE_KEYS)), table.written))
        for reserved in (np.array([-1]), np.array([2**64 - 1], np.uint64)):
            with pytest.raises(InvalidArgumentError, match=re.escape("keys below 2**64 - 1")):
                table.lookup(reserved)
    assert rows[0] == rows[1] == rows[2]
    assert rows[0][2] == {2**63 + 5, 171, 2**64 - 2}


def test_every_vector_of_the_page_is_checked():
    assert len(VECTORS) == len(re.findall(r"^\| `", VECTORS_PART, re.M))
    assert OF_RULES.keys() == RULES.keys() | COMMANDS.keys()
    known = {kind for kind in OPTIMIZERS if re.search(rf"`{kind} row ", VECTORS_PART)}
    assert known == OPTIMIZERS.keys(), "an optimizer has no vector on the page"


def test_rules_that_the_code_cites_are_on_the_page():
    numbers = {int(number) for number in re.findall(r"^## Rule (\d+)\. ", PAGE, re.M)}
    assert numbers == set(range(1, 13))
