"""The cases of docs/why-not-fused.md: their code, run, and their pictures, taken anew.

`python -m tests.support.documents` writes the pictures; the text of the page is checked by
tests/test_docs.py.
"""

import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.browser import Browser, find_chromium
from tofuse.report.report_text import ReportText

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "why-not-fused.md"
_CASE = re.compile(
    r"```python\n(?P<code>import.*?)```\s+```text\n(?P<shown>.*?)```\s+!\[[^\]]*\]\((?P<picture>[^)]*)\)",
    re.S,
)


@dataclass(frozen=True)
class Case:
    """A program of the page, what the page says it prints, and the picture under it."""

    code: str
    shown: str
    picture: Path


def cases() -> Iterator[Case]:
    """In the order of the page."""
    for m in _CASE.finditer(PAGE.read_text(encoding="utf-8")):
        yield Case(m["code"], m["shown"], DOCS / m["picture"])


def run(case: Case, folder: Path) -> ReportText:
    """The report that the case's code makes; the code lies in a file, so that lines have text."""
    path = folder / f"{case.picture.stem.removeprefix('why-')}.py"
    path.write_text(case.code, encoding="utf-8")
    names: dict[str, ReportText] = {}
    exec(compile(case.code, str(path), "exec"), names)
    return names["report"]


def main() -> None:
    chromium = find_chromium()
    if chromium is None:
        sys.exit("there is no Chromium on this machine's PATH to take pictures with")
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(chromium, Path(folder) / "profile")
        try:
            for case in cases():
                report = run(case, Path(folder))
                page = report.save_html(Path(folder) / "page.html")
                apart = "edges.findLastIndex((e) => !e.fused)"
                browser.open(page.as_uri(), 1280, 900)
                data = "JSON.parse(document.getElementById('data').textContent)"
                edge = browser.run(f"{data}.graphs[0].{apart}")
                browser.open(f"{page.as_uri()}#0.edge.{edge}", 1280, 900)
                case.picture.parent.mkdir(exist_ok=True)
                browser.picture(case.picture, ".workbench")
                print(case.picture, case.picture.stat().st_size)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
