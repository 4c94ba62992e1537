"""The page's files as files: whole, of this package alone, and free of every way in which a text could become markup.

What the page does is tested in a browser; here is what no browser shows: the policy that its server sends forbids
inline scripts and styles and anything from elsewhere, so none may be written, and a forgotten file would be a blank
page.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pantheon.web import STATIC

SCRIPTS = sorted(STATIC.glob("*.js"))
STYLES = sorted(STATIC.glob("*.css"))
TEXT_TO_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|\beval\(|new Function"
    r"|setAttribute\(\s*[\"'](style|on)|cssText|srcdoc|setHTML"
)
ELSEWHERE = re.compile(r"""(?:https?:)?//[\w-]+\.[a-z]{2,}|@import|url\((?!['"]?data:)""")
IMPORT = re.compile(r'^import .*?from "(\./[\w.]+)";$|^import "(\./[\w.]+)";$', re.M)
TYPES_ONLY = {"types.js"}


class Page(HTMLParser):
    """What index.html says: ids, what it asks for, and what a strict policy would refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.asked: list[str] = []
        self.refused: list[str] = []
        self.refers: list[str] = []
        self._open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self._open = tag
        self.refused += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        if tag == "script" and "src" not in given:
            self.refused.append("inline script")
        if tag in ("script", "link"):
            self.asked.append(given.get("src") or given.get("href") or "")
        if "id" in given:
            self.ids.append(given["id"])
        for name in ("for", "aria-labelledby", "aria-describedby", "aria-controls"):
            self.refers += given.get(name, "").split()
        if given.get("href", "").startswith("#"):
            self.refers.append(given["href"][1:])

    def handle_data(self, data: str) -> None:
        if self._open in ("style", "script") and data.strip():
            self.refused.append(f"inline {self._open}")


@pytest.fixture(scope="module")
def page() -> Page:
    parsed = Page()
    parsed.feed((STATIC / "index.html").read_text(encoding="utf-8"))
    return parsed


def test_index_asks_for_files_that_are_there_and_holds_nothing_inline(page: Page) -> None:
    assert page.refused == []
    assert page.asked
    assert all(name.startswith("/static/") and (STATIC / name[8:]).is_file() for name in page.asked), page.asked


def test_ids_are_unique_and_every_reference_has_its_element(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    assert set(page.refers) <= set(page.ids)
    used = {name for script in SCRIPTS for name in re.findall(r'\$\("([\w-]+)"\)', script.read_text(encoding="utf-8"))}
    assert used <= set(page.ids)
    assert len(used) > 30


def test_every_module_is_reached_from_main_and_imports_what_is_there() -> None:
    seen, waiting = set(), ["main.js"]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for first, second in IMPORT.findall((STATIC / name).read_text(encoding="utf-8")):
            waiting.append((first or second)[2:])
    assert seen | TYPES_ONLY == {script.name for script in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_module_has_an_opening_comment_a_size_and_no_way_to_make_markup_of_text(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    assert text.startswith("// @ts-check\n/**\n")
    assert text.count("\n") < 400
    assert not TEXT_TO_MARKUP.search(text)


def test_nothing_comes_from_elsewhere() -> None:
    for path in [*SCRIPTS, *STYLES, STATIC / "index.html"]:
        assert not ELSEWHERE.search(path.read_text(encoding="utf-8")), path.name
    for path in STYLES:
        assert path.read_text(encoding="utf-8").startswith("/* ")
