"""The page of a server that asks for tokens, and of one that is gone, in Chromium."""

import os
import re
import signal
from collections.abc import Iterator

import pytest

from embstore.commands import OpenSession
from embstore_client import connect
from embstore_server.setup.launch import ServerProcess
from tests.page.browser import SIZES, TOO_WIDE, Browser, browsing, why_not
from tests.page.trainer import PATIENCE_S
from tests.service.access.tenants import token_of, write_tokens

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture
def page(guarded: ServerProcess) -> Iterator[Browser]:
    """The page in a tab of its own."""
    with browsing(guarded.admin) as browser:
        browser.screen(*SIZES["desktop"], "dark")
        browser.open()
        yield browser
        assert browser.foreign() == []


def give(page: Browser, name: str) -> None:
    """Give the token of a tenant to the page that asks for one."""
    page.until("it asks", lambda: page.find("#dialog").is_displayed())
    page.write("#field-token", token_of(name) if name else "nobody.nothing")
    page.press("#confirm")


def test_a_token_is_asked_for_and_stays_in_the_tab(page):
    page.until("it says so", lambda: page.text("#state") == "token needed")
    give(page, "")
    page.until("it is not known", lambda: "does not know this token" in page.text("#dialog"))
    give(page, "operator")
    page.until("it is ready", lambda: page.text("#state") == "ready")
    page.open()
    page.until("it is ready again", lambda: page.text("#state") == "ready")
    assert page.script("return localStorage.length") == 0
    assert token_of("operator") not in page.script("return document.cookie + location.href")


def test_who_gives_no_token_is_left_alone(page):
    """Review: The dialog came back two seconds after it was closed, and each look asked twice."""
    page.until("it asks", lambda: page.find("#dialog").is_displayed())
    page.press("#cancel")
    page.requests()
    page.script("return new Promise(done => setTimeout(done, 3000))")  # longer than to a next look
    assert not page.find("#dialog").is_displayed() and page.requests() == []
    page.press("#token")
    give(page, "dashboard")
    page.until("it is ready", lambda: page.text("#state") == "ready")


def test_a_token_that_is_taken_back_is_asked_for_again(tmp_path):
    tokens = write_tokens(tmp_path / "tokens")
    with ServerProcess(tmp_path / "store", "--tokens", str(tokens)) as server:
        with browsing(server.admin) as browser:
            browser.open()
            give(browser, "operator")
            browser.until("it is ready", lambda: browser.text("#state") == "ready")
            browser.ask("#checkpoint")
            write_tokens(tokens, "dashboard")
            server.reload("tokens read")
            browser.press("#confirm")
            browser.until("so in the dialog", lambda: "is unknown" in browser.text(".problem"))
            browser.press("#cancel")
            browser.until("it says so", lambda: browser.text("#state") == "token needed")
            browser.ask("#token")
            give(browser, "dashboard")
            browser.until("it is ready again", lambda: browser.text("#state") == "ready")


def test_who_may_only_look_is_told_so(page):
    give(page, "dashboard")
    page.until("it is ready", lambda: page.text("#state") == "ready")
    page.ask("#checkpoint")
    page.press("#confirm")
    page.until("it is not allowed", lambda: "token is not allowed" in page.text("#dialog .problem"))


def test_who_may_not_look_is_told_so(page):
    give(page, "writer")
    page.until("it is not allowed", lambda: "token is not allowed" in page.text("#banner"))
    assert page.text("#state") == "not allowed"  # and not: no answer


def test_the_cache_is_resized(page):
    give(page, "operator")
    page.until("there are tables", lambda: "items" in page.text("#tables"))
    page.ask("#resize")
    page.write("#field-size", "256 MiB")
    page.press("#confirm")
    page.until("it is said", lambda: "budget is 256 MiB" in page.text("#toasts"))
    page.until("it is shown", lambda: re.search(r"of 256 MiB", page.text("#memory")))
    assert "No session is open" in page.text("#sessions")


def test_the_policy_is_changed(page):
    give(page, "operator")
    for policy in ("rank", "lru"):
        page.ask("#policy")
        page.press(f"#field-policy option[value='{policy}']")
        page.press("#confirm")
        page.until("it is said", lambda p=policy: f"The policy is {p} now" in page.text("#toasts"))
        page.until("it is shown", lambda p=policy: f"start, {p}" in page.text(".tile .sub"))


HOSTILE = '<img src=x onerror="document.title=1">' + "\N{SNOWMAN}long" * 30
"""The name of a session: markup, no space to break a line at, and characters beyond ASCII."""


def test_names_are_text_and_fit_a_phone(page, guarded):
    """Review: A long name made legend, dialog and page wider than the screen; a session called ".."
    could not be ended, as that is no part of a path."""
    page.screen(*SIZES["phone"], "light")
    page.open()
    with connect(guarded.address, timeout_s=PATIENCE_S, token=token_of("operator")) as store:
        store.checkpoint(HOSTILE, {HOSTILE: [HOSTILE]})
        for name in (HOSTILE, ".."):
            store.executor.execute(OpenSession(name, ("items",), shared=True, lease_ms=600_000))
        give(page, "operator")
        page.until("it is listed", lambda: HOSTILE in page.text("#sessions tbody"))
        page.until("it is listed", lambda: HOSTILE in page.text("#checkpoints tbody"))
        assert page.script(TOO_WIDE) <= 0
        rows = page.all("#sessions tbody tr")
        for row in rows:
            button = row.find_element("css selector", "button")
            assert button.accessible_name.startswith("End the session operator:")
        for number, name in enumerate(("..", HOSTILE)):
            page.ask(f"#sessions tbody tr:nth-child({2 - number}) button")
            dialog = page.find("#dialog")
            assert name in page.text("#dialog h2")
            assert (
                page.script("return arguments[0].scrollWidth - arguments[0].clientWidth", dialog)
                <= 0
            )
            page.press("#confirm")
            page.until(
                "it is said",
                lambda n=name: f"Ended the session operator:{n}" in page.text("#toasts"),
            )
            assert page.script(TOO_WIDE) <= 0
        assert store.stats()["sessions"]["open"] == []
    assert page.all("#main img") == [] and page.script("return document.title") == "embstore"


def test_who_closes_a_dialog_learns_all_the_same_what_came_of_it(page, guarded):
    """Review: The dialog that was open by then was closed in place of the one that was done, and a
    refusal was shown to nobody."""
    give(page, "operator")
    page.until("it is ready", lambda: page.text("#state") == "ready")
    for label, said in (("late", "Kept late"), ("late", "New checkpoint: ")):
        os.kill(guarded.pid, signal.SIGSTOP)
        try:
            page.ask("#checkpoint")
            page.write("#field-label", label)
            page.press("#confirm")
            page.press("#cancel")
            page.ask("#resize")
        finally:
            os.kill(guarded.pid, signal.SIGCONT)
        page.until("it is said", lambda s=said: s in page.text("#toasts"))
        assert "Resize the cache" in page.text("#dialog h2")
        page.press("#cancel")


def test_a_server_that_answers_nothing_is_missed(page, guarded):
    """Review: A process that was stopped, or a network that was cut, left the page "ready"."""
    give(page, "operator")
    page.until("it is ready", lambda: page.text("#state") == "ready")
    os.kill(guarded.pid, signal.SIGSTOP)
    try:
        page.until("it is missed", lambda: page.text("#state") == "no answer")
    finally:
        os.kill(guarded.pid, signal.SIGCONT)
    page.until("it is there again", lambda: page.text("#state") == "ready")


def test_a_server_that_is_gone_is_said_and_awaited(tmp_path):
    with ServerProcess(tmp_path / "store") as server:
        with browsing(server.admin) as browser:
            browser.open()
            browser.until("it is ready", lambda: browser.text("#state") == "ready")
            server.stop()
            browser.until("it is missed", lambda: browser.text("#state") == "no answer")
            assert "does not answer" in browser.text("#banner")
            browser.ask("#checkpoint")
            browser.press("#confirm")
            browser.until("so in the dialog", lambda: "does not answer" in browser.text(".problem"))
            browser.press("#cancel")
            with ServerProcess(tmp_path / "store", "--admin", server.admin):
                browser.until("it is found again", lambda: browser.text("#state") == "ready")
