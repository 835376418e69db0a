"""The page below a path of a proxy: it loads, looks and acts there, and nothing outside."""

from urllib.parse import urlsplit

import pytest

from embstore_client import connect
from tests.page.browser import SIZES, browsing, why_not
from tests.page.prefixed import PREFIX, prefixed
from tests.page.test_operating import give
from tests.page.trainer import PATIENCE_S
from tests.service.access.tenants import token_of

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())


def test_the_page_is_whole_below_a_prefix(guarded):
    with prefixed(guarded.admin) as proxy, browsing(proxy) as page:
        page.screen(*SIZES["desktop"], "dark")
        page.open(PREFIX.rstrip("/"))
        give(page, "operator")
        page.until("it is ready", lambda: page.text("#state") == "ready")
        page.ask("#checkpoint")
        page.write("#field-label", "below-a-prefix")
        page.press("#confirm")
        page.until("it is said", lambda: "Kept below-a-prefix" in page.text("#toasts"))
        page.until("it is listed", lambda: "below-a-prefix" in page.text("#checkpoints tbody"))
        paths = {urlsplit(url).path for url in page.requests()}
        assert all(path.startswith(PREFIX) for path in paths - {PREFIX.rstrip("/")}), paths
        assert {PREFIX + "page/main.js", PREFIX + "api/v1/stats"} <= paths
        assert page.foreign() == []
        assert all("401" in line for line in page.console())  # before it had a token
        page.open(PREFIX)
        page.until("it has its token still", lambda: page.text("#state") == "ready")
        assert page.script("return Object.keys(sessionStorage)") == [f"embstore.token {PREFIX}"]
    with connect(guarded.address, timeout_s=PATIENCE_S, token=token_of("operator")) as store:
        assert "below-a-prefix" in [one.label for one in store.checkpoints()]
