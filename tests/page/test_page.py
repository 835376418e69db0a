"""The page of a server that a session trains through, in Chromium: every part, every control."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from embstore.commands import JoinSession, OpenSession
from embstore.handles.store import Store
from embstore_client import connect
from embstore_proto.verbs import VERBS
from embstore_server.cli import exits, main
from embstore_server.setup.launch import ServerProcess
from embstore_tools.report.reading import read
from tests.page.browser import SIZES, THEMES, TOO_WIDE, Browser, browsing, why_not
from tests.page.trainer import PATIENCE_S, SESSION

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())

CHARTS = ("hit-rates", "throughput", "latency", "queue", "storage", "miss-ratio")
TABLES = {
    "verbs": "LookupStep",
    "stages": "look-ahead: collect",
    "cache": "rowwise_adagrad 16",
    "tables": "items",
    "sessions": SESSION,
    "slow": "UpdateStep",
}
"""What is in each table, while the trainer trains."""
WIDEST = {
    "at": "12:44:44 PM",
    "verb": max(VERBS, key=len),
    "status": "RESOURCE_EXHAUSTED",
    "took": "888.8 ms",
    "in the queue": "888.8 ms",
    "on the engine": "888.8 ms",
    "most of it": "initialize, 888.8 ms",
    "tables": "users, items, categories",
    "keys": "888,888,888",
    "received": "888.8 MiB",
    "sent": "888.8 MiB",
    "client": "trainer: ipv4:127.0.0.1:65535",
    "rank, step": "88, 888,888",
    "request, trace": "8" * 93,
}
"""A slow call whose every cell is wide. Which calls are slow depends on the machine."""
WIDEN = """
const headers = [...document.querySelectorAll("#slow th")].map(e => e.innerText.toLowerCase());
for (const row of document.querySelectorAll("#slow tbody tr"))
  [...row.cells].forEach((cell, i) => { cell.textContent = arguments[0][headers[i]]; });
for (const cell of document.querySelectorAll("td.cut")) cell.textContent = "8".repeat(99);
for (const row of document.querySelectorAll("#checkpoints tbody tr")) {
  for (const [i, wide] of [[1, "88.8 days"], [2, "888,888,888"], [3, "888.8 M"], [6, "protected"]])
    row.cells[i].textContent = wide;
  row.cells[7].firstElementChild.textContent = "Unprotect";
}
"""
"""Have rows as wide as they can be, whatever they are of: names are of any length."""


@pytest.fixture(scope="module")
def browser(trained: ServerProcess) -> Iterator[Browser]:
    with browsing(trained.admin) as browser:
        yield browser


@pytest.fixture(params=[(size, theme) for size in SIZES for theme in THEMES], ids="-".join)
def page(request: Any, browser: Browser) -> Iterator[Browser]:
    """The page on a screen, after a few looks; afterwards its console is empty, and it has asked
    nobody else."""
    size, theme = request.param
    browser.screen(*SIZES[size], theme)
    browser.open()
    browser.script("localStorage.clear(); sessionStorage.clear()")
    browser.open()
    browser.until("the page is ready", lambda: browser.text("#state") == "ready")
    yield browser
    assert browser.console() == []
    assert browser.foreign() == []


@pytest.fixture
def store(trained: ServerProcess) -> Iterator[Store]:
    with connect(trained.address, timeout_s=PATIENCE_S) as store:
        yield store


def rows(page: Browser, part: str) -> list[str]:
    return page.script(
        "return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)].map(r => r.innerText)",
        part,
    )


def is_drawn(page: Browser, part: str) -> bool:
    """Tell whether a part's charts have lines: pixels of more than the axes' colours."""
    return bool(
        page.script(
            """
            return [...document.querySelectorAll(`#${arguments[0]} canvas`)].some(canvas => {
              if (!canvas.width || !canvas.height) return false;
              const copy = new OffscreenCanvas(canvas.width, canvas.height);
              const drawn = copy.getContext("2d", {willReadFrequently: true});
              drawn.drawImage(canvas, 0, 0);
              const {data} = drawn.getImageData(0, 0, canvas.width, canvas.height);
              for (let i = 0; i < data.length; i += 4) {
                const [r, g, b, a] = data.slice(i, i + 4);
                if (a > 200 && Math.max(r, g, b) - Math.min(r, g, b) > 60) return true;
              }
              return false;
            })
            """,
            part,
        )
    )


def only_refusals(page: Browser) -> bool:
    """Tell whether the console has nothing but Chromium's own lines about requests refused here."""
    said = page.console()
    return bool(said) and all("Failed to load resource" in line and "409" in line for line in said)


def test_every_part_shows_the_training(page):
    for part, expected in TABLES.items():
        page.until(
            f"{part} shows {expected}", lambda p=part, e=expected: e in "".join(rows(page, p))
        )
    for part in CHARTS:
        page.until(f"{part} is drawn", lambda p=part: is_drawn(page, p))
    page.until("there is a hit rate", lambda: "%" in page.text(".tile .value"))
    session = page.text("#sessions tbody")
    assert re.search(r"1 of 1", session) and re.search(r"\d of 8", session)
    assert "today" in page.text("#miss-ratio .legend")
    page.until("slow calls are there", lambda: rows(page, "slow"))
    assert re.search(r"\b[0-9a-f-]{16,}\b", page.text("#slow tbody"))  # ids of requests


def test_the_page_fits_its_screen(page):
    page.until("rows are there", lambda: rows(page, "verbs"))
    page.until("a chart is drawn", lambda: is_drawn(page, "throughput"))
    page.until("there are two layouts", lambda: page.find("#layout").is_displayed())
    assert page.script(TOO_WIDE) <= 0
    cut = page.script(
        "return [...document.querySelectorAll('.tile .value')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.innerText)"
    )
    assert cut == []


@pytest.mark.parametrize("width", [1280, 1366, 1400, 1680])
def test_no_column_is_cut_on_a_desktop(browser, store, width):
    store.checkpoint(f"wide-{width}", {"wide": width})
    browser.screen(width, 900, "dark")
    browser.open()
    for part, expected in TABLES.items():
        browser.until(f"{part} is there", lambda p=part, e=expected: e in "".join(rows(browser, p)))
    browser.until("a checkpoint", lambda: rows(browser, "checkpoints"))
    browser.script(WIDEN, WIDEST)
    cut = browser.script(
        "return [...document.querySelectorAll('.scroll')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.closest('.card').id)"
    )
    assert cut == []


def test_the_hottest_tables_are_those_of_all_keys(browser, store):
    """Not of those lookups alone that are counted by key."""
    browser.screen(*SIZES["desktop"], "dark")
    browser.open()
    browser.until("rows are there", lambda: len(rows(browser, "tables")) > 1)
    keys = {name: table["lookup_keys"] for name, table in store.stats()["tables"].items()}
    hottest = max(keys, key=lambda name: keys[name])
    browser.until("the hottest is first", lambda: rows(browser, "tables")[0].startswith(hottest))
    shares = [float(re.search(r"([\d.]+) ?%", row).group(1)) for row in rows(browser, "tables")]
    assert sum(shares) == pytest.approx(100, abs=1)


def test_text_is_legible(page):
    """At least 4.5 to 1, as WCAG has it, of text that matters."""
    page.until("rows are there", lambda: rows(page, "verbs"))
    pairs = [("--text", "--card"), ("--muted", "--card"), ("--muted", "--ground")]
    pairs += [("--accent-text", "--accent"), ("--good", "--card"), ("--bad", "--card")]
    for front, ground in [*pairs, ("--warn", "--card")]:
        light, dark = sorted((_luminance(page, front), _luminance(page, ground)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (front, ground)


def _luminance(page: Browser, name: str) -> float:
    colour = page.script(
        "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()",
        name,
    )
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


NAMED = {
    "button",
    "combobox",
    "table",
    "columnheader",
    "image",
    "region",
    "group",
    "textbox",
    "link",
}
"""Roles that say nothing without a name."""


def test_who_hears_the_page_is_told_what_everything_is(page):
    """Review: Tables, charts and columns had no names, and all buttons that end a session one."""
    page.until("rows are there", lambda: rows(page, "sessions"))
    page.until("a chart is drawn", lambda: is_drawn(page, "throughput"))
    tree = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    found = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node["ignored"]
    ]
    assert {role for role, _ in found} >= {"button", "table", "columnheader", "image", "heading"}
    assert [one for one in found if one[0] in NAMED and not one[1].strip()] == []
    assert ("button", f"End the session {SESSION}") in found
    assert ("heading", "embstore") in found


def test_the_switch_changes_the_colours_and_is_remembered(page):
    theme = "return document.documentElement.dataset.theme"
    before = page.script(theme)
    page.press("#theme")
    other = page.script(theme)
    assert {before, other} == set(THEMES)
    page.open()
    assert page.until("a theme is there", lambda: page.script(theme)) == other
    page.press("#theme")
    assert page.script(theme) == before


def test_pause_stops_looking_and_resume_goes_on(page):
    page.press("#pause")
    assert page.text("#pause") == "Resume"
    page.press("#pause")
    assert page.text("#pause") == "Pause"
    page.requests()
    page.until("it looks again", lambda: any(u.endswith("/stats") for u in page.requests()))


def test_choices_change_what_is_drawn(page):
    for selector, value in (("#span", "120"), ("#quantile", "p50"), ("#layout", "adagrad 32")):
        page.until(
            f"{selector} has {value}",
            lambda s=selector, v=value: page.all(f"{s} option[value='{v}']"),
        )
        page.press(f"{selector} option[value='{value}']")
    assert "adagrad 32" in page.text("#miss-ratio .note")


def test_a_checkpoint_is_made_and_shown_with_its_age(page, store, request):
    label = re.sub(r"\W+", "-", request.node.name)
    page.ask("#checkpoint")
    page.write("#field-label", label)
    page.press("#confirm")
    page.until("it is said", lambda: f"Kept {label}" in page.text("#toasts"))
    page.until("it is listed", lambda: label in page.text("#checkpoints tbody"))
    assert label in [one.label for one in store.checkpoints()]
    page.ask("#checkpoint")
    page.write("#field-label", label)  # which one has by now
    page.press("#confirm")
    page.until("the refusal is shown", lambda: label in page.text("#dialog .problem"))
    page.press("#cancel")
    assert only_refusals(page)


def button(page: Browser, part: str, name: str) -> str:
    """Return the selector of a part's button of this name, when it is there."""
    selector = f"#{part} button[aria-label='{name}']"
    page.until(f"{name} is there", lambda: page.all(selector))
    return selector


def test_a_checkpoint_is_protected_and_dropped(page, store, request):
    label = re.sub(r"\W+", "-", request.node.name)
    store.checkpoint(label)
    page.ask(button(page, "checkpoints", f"Protect {label}"))
    assert label in page.text("#dialog h2")
    page.press("#cancel")
    assert not any(one.protected for one in store.checkpoints())
    page.ask(button(page, "checkpoints", f"Protect {label}"))
    page.press("#confirm")
    page.until("it is said", lambda: f"{label} is protected" in page.text("#toasts"))
    page.until("it is shown", lambda: "protected" in page.text("#checkpoints tbody"))
    assert [one.label for one in store.checkpoints() if one.protected] == [label]
    page.ask(button(page, "checkpoints", f"Drop {label}"))
    page.press("#confirm")
    page.until("it is refused", lambda: "protected" in page.text("#dialog .problem"))
    page.press("#cancel")
    page.ask(button(page, "checkpoints", f"Unprotect {label}"))
    page.press("#confirm")
    page.until("it is said", lambda: f"{label} is a routine" in page.text("#toasts"))
    page.ask(button(page, "checkpoints", f"Drop {label}"))
    assert "gone for good" in page.text("#dialog")
    page.press("#confirm")
    page.until("it is said", lambda: f"Dropped {label}" in page.text("#toasts"))
    page.until("it is gone", lambda: label not in page.text("#checkpoints tbody"))
    assert label not in [one.label for one in store.checkpoints()]
    assert only_refusals(page)


def test_the_cache_is_not_resized_while_a_session_is_open(page):
    page.ask("#resize")
    page.write("#field-size", "much")
    page.press("#confirm")
    page.until("it asks for a size", lambda: "Expected a size" in page.text("#dialog .problem"))
    page.write("#field-size", "16 MiB")
    page.press("#confirm")
    page.until("the session is named", lambda: SESSION in page.text("#dialog .problem"))
    page.press("#cancel")
    assert not page.find("#dialog").is_displayed()
    assert only_refusals(page)


def test_a_session_is_ended_when_it_is_confirmed(page, store):
    store.executor.execute(OpenSession("spare", ("users",), shared=True))
    store.executor.execute(JoinSession("spare", 0))
    page.until("it is listed", lambda: "spare" in page.text("#sessions tbody"))
    page.script(
        "[...document.querySelectorAll('#sessions tr')].find(r => r.innerText.includes('spare'))"
        ".querySelector('button').id = 'end-spare'"
    )
    page.ask("#end-spare")
    assert "spare" in page.text("#dialog h2")
    page.press("#cancel")
    assert "spare" in [one["name"] for one in store.stats()["sessions"]["open"]]
    page.ask("#end-spare")
    page.press("#confirm")
    page.until("it is said", lambda: "Ended the session spare" in page.text("#toasts"))
    page.until("it is gone", lambda: "spare" not in page.text("#sessions tbody"))
    assert [one["name"] for one in store.stats()["sessions"]["open"]] == [SESSION]


def test_a_run_is_saved_and_drawn(page, tmp_path):
    """What this page has seen of the session; `embstore report` takes it as a trainer's own."""
    allowed = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", allowed)
    save = button(page, "sessions", f"Save the run of {SESSION} for embstore report")
    saved = tmp_path / f"{SESSION}.run.json"

    def has_steps() -> bool:  # Chromium reserves the name by an empty file, and renames what came
        saved.unlink(missing_ok=True)
        page.press(save)
        page.until("it is saved", lambda: saved.exists() and saved.stat().st_size)
        return len(read(saved).steps) > 1

    page.until("two looks saw steps", has_steps)
    run = read(saved)
    assert run.session["name"] == SESSION and run.session["tables"]
    assert run.total("lookup_keys") >= run.total("lookup_hits") > 0
    assert run.total("step") == run.samples["step"][-1] - run.samples["step"][0]
    assert main(["report", str(saved), "-o", str(tmp_path / "run.html")]) == exits.OK
    drawn = (tmp_path / "run.html").read_text()
    assert drawn.count("<svg") == 5 and "Where the loop" not in drawn
