"""The report as one self-contained HTML page."""

from __future__ import annotations

import json
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tofuse.report.model import Report
from tofuse.report.page_data import build_page_data

PAGE_FOLDER = Path(__file__).parent / "page"
SCRIPTS = ("base.js", "graph.js", "panel.js", "sections.js", "charts.js", "search.js", "main.js")


def page_text(report: Report) -> str:
    """Return the page with its style, data and scripts inlined."""
    environment = Environment(
        loader=FileSystemLoader(PAGE_FOLDER), autoescape=True, undefined=StrictUndefined
    )
    page = build_page_data(report)
    # a "</script>" in the data would end the script element around it
    page_json = json.dumps(page, separators=(",", ":")).replace("<", "\\u003c")
    return environment.get_template("page.html.j2").render(
        page=page,
        page_json=page_json,
        style=_read("style.css"),
        script="\n".join(map(_read, SCRIPTS)),
    )


def _read(name: str) -> str:
    return (PAGE_FOLDER / name).read_text(encoding="utf-8")
