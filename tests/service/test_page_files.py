"""The files of the page: how they are served, and that they ask for nothing from elsewhere."""

import asyncio
import re
from typing import Any

import pytest

from embstore_server.transports.rest.page import PAGE_PATH, page_files
from tests.service.access.tenants import write_tokens
from tests.service.rest import unopened
from tests.style.sources import ROOT

PAGE_BYTES_MAX = 300_000
PROJECT = re.compile(r"https://github\.com/leeoniya/uPlot|http://www\.w3\.org/")
"""Addresses that are names, and no place that is asked: a comment, the names of XML."""
FILES = page_files()
OWN = {name: one for name, one in FILES.items() if not name.startswith("vendor/")}


def test_the_page_needs_no_token_and_no_store(tmp_path):
    tokens = write_tokens(tmp_path / "tokens", "reader")

    async def got() -> Any:
        async with unopened(tmp_path / "store", tokens=tokens) as (rest, _):
            return await rest.client.get("/")

    answer = asyncio.run(got())
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "embstore" in answer.text


async def test_a_browser_that_has_a_file_is_told_so(rest):
    tag = (await rest.client.get("/")).headers["etag"]
    answer = await rest.client.get("/", headers={"if-none-match": tag})
    assert answer.status_code == 304 and not answer.content


async def test_every_file_is_served_with_its_type(rest):
    for name, file in FILES.items():
        answer = await rest.client.get(PAGE_PATH + name)
        assert (answer.content, answer.headers["content-type"]) == (file.content, file.type)


@pytest.mark.parametrize(
    "name", ["nope.js", "../rest/page.py", "%2e%2e/rest/page.py", "vendor", "", "__init__.py"]
)
async def test_what_is_no_file_of_the_page_is_not_found(rest, name):
    answer = await rest.client.get(PAGE_PATH + name)
    assert answer.status_code == 404
    assert answer.json()["message"]


async def test_the_policy_lets_the_page_reach_nothing_but_its_server(rest):
    policy = (await rest.client.get("/")).headers["content-security-policy"]
    sources = {part.split()[0]: part.split()[1:] for part in policy.split("; ")}
    assert sources["default-src"] == ["'none'"]
    allowed = {source for given in sources.values() for source in given}
    assert allowed == {"'self'", "'none'"}  # no inline script, no eval, no other host


def test_the_page_is_small():
    assert sum(len(file.content) for file in FILES.values()) < PAGE_BYTES_MAX


def test_the_page_names_no_other_host():
    for name, file in FILES.items():
        text = PROJECT.sub("", file.content.decode())
        if not name.endswith("LICENSE"):
            assert not re.search(r"\b(https?:)?//[a-z0-9-]+\.[a-z]", text), name


def test_the_pictures_of_the_guide_load_nothing():
    """Review: That of `embstore top` named the fonts of a CDN."""
    pictures = sorted((ROOT / "docs/guide/pictures").glob("*.svg"))
    for picture in pictures:
        assert not re.search(
            r"\b(https?:)?//[a-z0-9-]+\.[a-z]", PROJECT.sub("", picture.read_text())
        )
    assert pictures


def test_nothing_is_inline():
    html = FILES["index.html"].content.decode()
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*\ssrc=)", html)


def test_everything_that_is_loaded_is_there():
    html = FILES["index.html"].content.decode()
    below = PAGE_PATH.removeprefix("/")
    loaded = [path.removeprefix(below) for path in re.findall(r'(?:src|href)="([^"#]+)"', html)]
    for name, file in OWN.items():
        if name.endswith(".js"):
            loaded += re.findall(r'from "\./([^"]+)"', file.content.decode())
    assert loaded and set(loaded) <= FILES.keys()
    assert FILES.keys() == {*loaded, "index.html", "vendor/uPlot.LICENSE"}


def test_all_paths_are_relative_to_the_page():
    """A proxy may have the page below a path of its own."""
    for name, file in OWN.items():
        absolute = r"""["'`(]/(page|api|metrics|openapi)\b"""
        assert not re.search(absolute, file.content.decode()), name


def test_the_library_comes_with_its_licence():
    assert b"Permission is hereby granted" in FILES["vendor/uPlot.LICENSE"].content
    assert b"leeoniya/uPlot (v1.6" in FILES["vendor/uPlot.iife.min.js"].content[:80]


def test_files_are_one_idea_each():
    for name, file in OWN.items():
        assert len(file.content.splitlines()) <= 300, name
