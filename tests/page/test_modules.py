"""What the page computes: units, sizes that are written, rates and quantiles of what was seen."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from embstore_server.setup.launch import ServerProcess
from tests.page.browser import browsing, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

MODULES = """
const names = ["actions", "charts", "format", "history", "runs"];
const found = await Promise.all(names.map((name) => import(`/page/${name}.js`)));
const [{exactly, parseBytes}, {Chart}, {age, percent}, {History}, {Runs}] = found;
"""
LOOKS = """
const looked = {keys: 0, hits: 0, name: "ctr", steps: 0, instance: "a", calls: [0, 0]};
const of = (at, {keys, hits, name, steps, instance, calls}) => ({
  at,
  calls: {bounds: [1], verbs: {Lookup: {call: calls, wait: calls, engine: calls}}},
  stats: {
    service: {instance, uptime_s: at, queue_calls: 0, inflight_bytes: 0},
    storage: {bytes_read: keys, bytes_written: 0},
    cache: {pools: [{optimizer: "sgd", dim: 4, slots: 8, resident_rows: 6, host_rows: 2,
      accesses: keys, unique_keys: keys, unique_hits: hits,
      evictions_clean: keys, evictions_dirty: 0, evictions_host: 0}]},
    sessions: {open: [{name, lookup_keys: keys, lookup_hits: hits, steps_finished: steps}],
      planning: {stage_seconds: {}}},
    stages: {},
  },
});
const look = (at, seen) => of(at, {...looked, ...seen});
const history = new History();
"""


@pytest.fixture(scope="module")
def run(guarded: ServerProcess) -> Iterator[Callable[[str], Any]]:
    """Run a function's body beside the modules of the page, without the page."""
    with browsing(guarded.admin) as browser:
        browser.open("/page/icon.svg")

        def run(body: str) -> Any:
            return browser.script(f"return (async () => {{ {MODULES} {body} }})()")

        yield run


def test_sizes_are_read_as_they_are_written(run):
    """Review: "1,5 GiB" was 15 GiB."""
    given = ["1.5 GiB", "1,024 MiB", "4g", "512", "0.25K"]
    sizes = run(f"return {given}.map(parseBytes)")
    assert sizes == [3 << 29, 1 << 30, 4 << 30, 512, 256]
    for bad in ("1,5 GiB", "12,34 MiB", "1.2.3 G", "-1 M", "0", "GiB", "5 GB", "", "1e9"):
        refused = run(f"try {{ return parseBytes('{bad}') }} catch (error) {{ return '' + error }}")
        assert "Expected a size" in str(refused), bad


def test_the_present_size_is_offered_as_it_is(run):
    """Review: A budget of 1 GiB and a byte was offered as 1 GiB, and confirmed as that."""
    sizes = [1 << 30, (1 << 30) + 1, 1_234_567_891, 3 << 29]
    assert run(f"return {sizes}.map(exactly).map(parseBytes)") == sizes
    assert run("return exactly(12 * 2 ** 20)") == "12 MiB"


def test_ages_and_shares_do_not_round_up_to_what_they_are_not(run):
    """Review: An age of 7,199 s was "1 h 60 min", and 99.9999 % of hits were "100.00 %"."""
    ages = run("return [59.7, 3599, 7199, 172799, 172801].map(age)")
    assert ages == ["1 min", "1 h 0 min", "2 h 0 min", "2 days", "2 days"]
    shares = run("return [1, 0.999999, 0.995, 0.5, 0, 0.0004].map(percent)")
    assert shares == ["100 %", "99.99 %", "99.50 %", "50.0 %", "0 %", "0.0 %"]


def test_counters_that_begin_anew_have_no_rate(run):
    """Review: After a restore, and of a session that was opened again, rates were negative."""
    now = run(
        LOOKS + "history.push(look(1, {keys: 100, hits: 50, steps: 9}));"
        "history.push(look(3, {keys: 10, hits: 10, steps: 2})); return history.now"
    )
    assert now["keys"] == 0 and now["hits"] is None
    assert now["read"] is None
    assert [value for value in now.values() if isinstance(value, int | float) and value < 0] == []
    assert "hit/sgd 4" not in now and "steps/ctr" not in now


def test_rates_are_by_the_clock_of_the_server(run):
    """Review: An answer that was late by a second made rates of two seconds a third lower."""
    now = run(
        LOOKS + "const late = look(3, {keys: 200, hits: 100, calls: [4, 0]}); late.at = 4;"
        "history.push(look(1)); history.push(late); return [history.now, history.recentCalls()]"
    )
    assert now[0]["keys"] == 100 and now[0]["hits"] == 0.5 and now[0]["calls"] == 2
    assert now[1][0]["perSecond"] == 2


def test_a_restart_an_absence_and_a_clock_set_back_are_gaps(run):
    """Review: After an hour in the background "the last ten seconds" were that hour."""
    for after in ("look(3600, {keys: 99})", "look(5, {keys: 99, instance: 'b'})", "look(2)"):
        now, recent, times = run(
            LOOKS + "history.push(look(1)); history.push(look(3, {calls: [1, 0]}));"
            f"history.push({after});"
            "return [history.now, history.recentCalls(), history.times]"
        )
        assert "keys" not in now and recent == []
        assert times == sorted(set(times))


def test_looking_takes_a_small_part_of_the_engine(run):
    """Review: Stats count all slots anew, and were asked for every two seconds all the same."""
    found = run(
        "const {restMs} = await import('/page/history.js'); const of = (p50) => "
        "restMs([{verb: 'GetCalls', engine: {p50: 9}}, {verb: 'GetStats', engine: {p50}}]);"
        "return [restMs([]), restMs([{verb: 'GetStats', engine: null}]), of(0.01), of(0.4), of(9)]"
    )
    assert found == [2000, 2000, 2000, 8000, 20000]


def test_what_has_ended_is_forgotten(run):
    """Review: Each session that was ever seen kept its points for as long as the page was open."""
    kept = run(
        LOOKS + "for (let i = 0; i < 3000; i += 1) history.push(look(1 + 2 * i, "
        "{keys: 9 * i, hits: i, steps: i, name: `run ${i >> 1}`}));"
        "return [history.times.length, history.series.size, history.looks.length]"
    )
    points, series, looks = kept
    assert points == 1000 and series < 1100 and looks < 10


def test_lines_that_are_shown_together_have_different_colours(run):
    """Review: The ninth name that was ever seen had the colour of the first."""
    colours = run(
        "const chart = {colours: new Map()}; const give = (names) => "
        "Chart.prototype.giveColours.call(chart, names);"
        "for (let i = 0; i < 30; i += 1) give(['kept', `run ${i}`]);"
        "return [...chart.colours]"
    )
    assert colours == [["kept", 0], ["run 29", 1]]


def test_a_token_that_no_header_can_have_is_refused(run):
    """Review: It was kept, and every look said that the server did not answer."""
    said, kept = run(
        "const {hasToken, setToken} = await import('/page/api.js');"
        "try { setToken('reader.sécret'); } catch (error) { return ['' + error, hasToken()]; }"
        "return ['', hasToken()]"
    )
    assert "printable ASCII" in said and not kept


SESSIONS = """
const runs = new Runs();
const counted = (step) => ({lookup_keys: step, lookup_hits: step, prefetched_keys: 0,
  early_bytes: 0, late_bytes: 0, stalls: 0, stall_s: 0, held_back_s: 0, steps_in_parts: 0,
  steps_planned_again: 0});
const seen = (step, more = {}) => ({
  service: {instance: "a"}, storage: {bytes_read: 0, bytes_written: 0}, cache: {budget_bytes: 1},
  sessions: {planning: {stage_seconds: {collect: step}},
    open: [{name: "ctr", tables: ["ads"], last_step: step, ...counted(step)}]},
  ...more});
const file = (stats) => runs.file(stats.sessions.open[0], stats).samples;
"""


def test_a_run_of_any_length_has_so_many_samples(run):
    found = run(
        f"{SESSIONS} for (let n = 0; n < 5000; n += 1) runs.note({{at: 2 * n, stats: seen(n)}});"
        "return file(seen(5000))"
    )
    steps = found["step"]
    assert 100 < len(steps) <= 256
    assert steps == sorted(steps) and steps[0] == 0 and steps[-1] > 4900
    assert found["planning.collect"] == found["lookup_keys"] == steps


def test_a_session_that_was_opened_again_is_another_run(run):
    others = {
        "counts from nothing": "seen(3)",
        "another server": 'seen(12, {service: {instance: "b"}})',
    }
    for why, other in others.items():
        steps = run(
            f"{SESSIONS} runs.note({{at: 0, stats: seen(9)}});"
            f"runs.note({{at: 2, stats: seen(10)}}); runs.note({{at: 4, stats: {other}}});"
            "return file(seen(0)).step"
        )
        assert len(steps) == 1, why
    assert (
        run(
            f"{SESSIONS} runs.note({{at: 0, stats: seen(9)}});"
            "runs.note({at: 2, stats: seen(9, {sessions: {open: []}})}); return runs.seen.size"
        )
        == 0
    )
