"""Hashed ids in another language: the vectors of the contract, and the library's hash of any."""

import json
import shutil
import subprocess
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from embstore.config import default_seed
from tests.docs.test_contract import OF_RULES
from tests.hashed_ids import HASHED, HashedId, printed
from tests.node.installed import HERE


def by_node(ids: Sequence[HashedId]) -> list[int]:
    if shutil.which("node") is None:
        pytest.skip("needs node")
    asked = "".join(f"{json.dumps(asked_of(one))}\n" for one in ids)
    command = ["node", str(HERE / "hash_ids.mjs")]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=True)
    return [int(json.loads(line)) for line in done.stdout.splitlines()]


def asked_of(one: HashedId) -> dict[str, str | int | None]:
    seed = 0 if one.feature is None else default_seed(one.feature)
    what = {"text": one.value} if isinstance(one.value, str) else {"integer": str(one.value)}
    return {**what, "seed": str(seed), "rows": one.rows}


@pytest.mark.parametrize("name", HASHED)
def test_vectors_of_the_page(name):
    assert printed(by_node(HASHED[name]), name) == OF_RULES[name].value


TEXTS = st.text("aZ0é日", max_size=12) | st.integers(0, 2200).map(lambda length: "é5" * length)


@settings(max_examples=5)
@given(st.lists(TEXTS, min_size=40, max_size=40), st.sampled_from(["user", None]))
def test_texts_have_the_hash_of_the_library(texts, feature):
    seed = 0 if feature is None else default_seed(feature)
    expected = [xxh3_64_intdigest(text.encode(), seed) for text in texts]
    assert by_node([HashedId(text, feature) for text in texts]) == expected
