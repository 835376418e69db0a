"""All policies and ways on one file, side by side."""

from dataclasses import replace

from embstore_tools import demo
from embstore_tools.demo.job import Job
from embstore_tools.demo.result import Comparison
from embstore_tools.demo.showing import show_comparison
from embstore_tools.demo.ways import HotCold
from tests.service.demo.embedded import console, text_of

LITTLE = Job(samples=6000, batch=512, dim=8, scale=0.001, cache_share=0.05)
HOT = HotCold(budget_bytes=256 << 10, lookahead=4)
NAMES = ["LRU", "LFU", "warm rank", "look-ahead", "hot/cold"]


def test_all_are_exact_and_only_hot_cold_comes_to_other_bits(embedded, tmp_path):
    shown = console()
    compared = demo.compare(job=LITTLE, hot_cold=HOT, directory=tmp_path / "kept", console=shown)
    results = compared.results
    assert compared.exact and list(results) == NAMES
    assert len({results[name].digest for name in NAMES[:4]}) == 1
    assert results["hot/cold"].digest != results["LRU"].digest
    assert [results[name].policy for name in NAMES] == ["lru", "lfu", "rank", "lru", "lru"]
    assert results["look-ahead"].session is not None
    assert results["look-ahead"].session.lookahead == 4
    hot = results["hot/cold"].hot
    assert hot is not None and hot.hot_samples > 0 and hot.mixed_samples > 0
    assert {results[name].samples_held_out for name in NAMES} == {609}
    said = text_of(shown)
    assert said.count("counting accesses ...") == 1
    for word in (*NAMES, "hot/cold: training ...", "hits by unique key", "AUC", "over the network"):
        assert word in said
    assert len(list((tmp_path / "kept").glob("store-*"))) == 5


def test_one_that_is_not_exact_is_told(embedded):
    compared = demo.compare(job=replace(LITTLE, samples=2000), hot_cold=HOT, console=console())
    wrong = replace(compared.results["LFU"], first_difference="step 4")
    broken = Comparison({**compared.results, "LFU": wrong}, compared.count_s)
    assert not broken.exact
    shown = console()
    show_comparison(broken, shown)
    [exact] = [line for line in text_of(shown).splitlines() if "exact" in line]
    assert exact.split() == ["│", "exact", "│", "yes", "│", "no", "│"] + ["yes", "│"] * 3
