"""Chromium, driven by its own driver: what the page shows, what its console says, what it asks for.

It resolves no name but loopback, so that a request elsewhere fails, and is seen. Debian has both
programs (`chromium`, `chromium-driver`); where one is missing, or Selenium, the tests are skipped.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the extra dev")

from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

PATIENCE_S = 120.0
SIZES = {"desktop": (1440, 900), "tablet": (834, 1112), "phone": (390, 844)}
THEMES = ("dark", "light")
TOO_WIDE = """
const {scrollWidth, clientWidth} = document.documentElement;
return scrollWidth - clientWidth
"""
"""By how much the page is wider than its screen; a phone's window grows with what is too wide."""
_OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--disable-extensions", "--hide-scrollbars", "--lang=en-US"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_WIDTH_OF_PHONES = 500
"""Chromium's window is no narrower: below, the screen is emulated."""


class Browser:
    """One tab of Chromium.

    Parameters
    ----------
    admin : HOST:PORT of the server whose page it is
    """

    def __init__(self, driver: Any, admin: str) -> None:
        self.driver = driver
        self.origin = f"http://{admin}"

    def open(self, path: str = "/") -> None:
        """Load a page."""
        self.driver.get(self.origin + path)

    def screen(self, width: int, height: int, theme: str, *, mobile: bool = True) -> None:
        """Be a screen of this size, of a system that prefers this theme; a narrow one is a phone's,
        which lays a page out when it is loaded, unless it is not to be."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
        metrics["mobile"] = mobile and width < _WIDTH_OF_PHONES
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def find(self, selector: str) -> WebElement:
        """Return the first element of a CSS selector."""
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """Return all elements of a CSS selector."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Return the text of an element, shown or not."""
        return str(self.script("return document.querySelector(arguments[0]).innerText", selector))

    def script(self, code: str, *arguments: Any) -> Any:
        """Return what a script returns."""
        return self.driver.execute_script(code, *arguments)

    def until(self, what: str, holds: Callable[[], Any]) -> Any:
        """Wait until something holds of the page, and return it."""
        waiting = WebDriverWait(self.driver, PATIENCE_S, poll_frequency=0.1)
        return waiting.until(lambda _: holds(), f"{what}; the page says {self.text('body')[:1500]}")

    def press(self, selector: str) -> None:
        """Click an element, as soon as it is there."""
        element = self.until(f"{selector} is shown", lambda: self._shown(selector))
        self.script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()

    def _shown(self, selector: str) -> WebElement | None:
        found = [one for one in self.all(selector) if one.is_displayed() and one.is_enabled()]
        return found[0] if found else None

    def ask(self, selector: str) -> None:
        """Click what opens the dialog, until that is open: a part above may have grown meanwhile,
        and the click have met something else."""

        def is_open() -> bool:
            if not self.find("#dialog").is_displayed():
                self.press(selector)
            return self.find("#dialog").is_displayed()

        self.until(f"{selector} opens the dialog", is_open)

    def write(self, selector: str, text: str) -> None:
        """Put a text into a field, in place of what is there."""
        field = self.find(selector)
        field.clear()
        field.send_keys(text)

    def console(self) -> list[str]:
        """Return what the console has said since it was asked last, but for debugging."""
        return [e["message"] for e in self.driver.get_log("browser") if e["level"] != "DEBUG"]

    def requests(self) -> list[str]:
        """Return the URLs of all requests since this was asked last."""
        events = (json.loads(e["message"])["message"] for e in self.driver.get_log("performance"))
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def foreign(self) -> list[str]:
        """Return the URLs of requests to anything but the server."""
        own = urlsplit(self.origin).netloc
        return [url for url in self.requests() if urlsplit(url).netloc != own]

    def shoot(self, path: Path, *, whole: bool = False) -> None:
        """Keep a picture of the screen, or of the whole page."""
        if not whole:
            self.driver.save_screenshot(str(path))
            return
        height = self.script("return document.documentElement.scrollHeight")
        width = self.script("return innerWidth")
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        self.driver.save_screenshot(str(path))


def why_not() -> str:
    """Return why there is no browser to drive; empty: there is one."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"needs {' and '.join(missing)}, of Debian's package chromium-driver" if missing else ""


@contextmanager
def browsing(admin: str) -> Iterator[Browser]:
    """Yield a browser for the page of a server."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for option in _OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver, admin)
    finally:
        driver.quit()
