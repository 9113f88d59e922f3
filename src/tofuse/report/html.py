"""The report as one HTML page that needs nothing beside itself."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tofuse.report.model import Report
from tofuse.report.page_data import view_report

FOLDER = Path(__file__).parent / "page"
SCRIPTS = ("base.js", "graph.js", "panel.js", "sections.js", "charts.js", "search.js", "main.js")


def page_text(report: Report) -> str:
    """The page: style, data and scripts inside."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined
    )
    view = view_report(report)
    # a "<" in the data could end the element that holds it
    data = json.dumps(asdict(view), separators=(",", ":")).replace("<", "\\u003c")
    return environment.get_template("page.html.j2").render(
        view=view,
        data=data,
        style=_read("style.css"),
        script="\n".join(map(_read, SCRIPTS)),
    )


def write_page(report: Report, path: Path) -> None:
    """Write the page, folders included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_text(report), encoding="utf-8")


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
