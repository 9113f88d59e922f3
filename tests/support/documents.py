"""Run the cases of docs/why-not-fused.md and take their pictures.

`python -m tests.support.documents` writes the pictures; tests/test_docs.py checks the text.
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
    r"```python\n(?P<code>import.*?)```\s+```text\n(?P<output>.*?)```\s+!\[[^\]]*\]\((?P<picture>[^)]*)\)",
    re.S,
)


@dataclass(frozen=True)
class Case:
    """A program of the page, the output shown below it, and its picture."""

    code: str
    output: str
    picture: Path


def cases() -> Iterator[Case]:
    """Yield the cases in the order of the page."""
    for m in _CASE.finditer(PAGE.read_text(encoding="utf-8")):
        yield Case(m["code"], m["output"], DOCS / m["picture"])


def run(case: Case, folder: Path) -> ReportText:
    """Run the case and return its report; the code is in a file so that its lines have text."""
    path = folder / f"{case.picture.stem.removeprefix('why-')}.py"
    path.write_text(case.code, encoding="utf-8")
    names: dict[str, ReportText] = {}
    exec(compile(case.code, str(path), "exec"), names)
    return names["report"]


def main() -> None:
    chromium = find_chromium()
    if chromium is None:
        sys.exit("Chromium is needed to take pictures, but is not on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(chromium, Path(folder) / "profile")
        try:
            for case in cases():
                report = run(case, Path(folder))
                page = report.save_html(Path(folder) / "page.html")
                last_unfused = "edges.findLastIndex((e) => !e.fused)"
                browser.open(page.as_uri(), 1280, 900)
                data = "JSON.parse(document.getElementById('data').textContent)"
                edge = browser.run(f"{data}.graphs[0].{last_unfused}")
                browser.open(f"{page.as_uri()}#0.edge.{edge}", 1280, 900)
                case.picture.parent.mkdir(exist_ok=True)
                browser.screenshot(case.picture, ".workbench")
                print(case.picture, case.picture.stat().st_size)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
