"""`tofuse explain script.py:function`: print the report of one call."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator

import tofuse
from tofuse.cli.progress import progress
from tofuse.cli.script import Target, add_target_arguments, load_target, parse_options
from tofuse.report.report_text import ReportText

SUMMARY = "compile a function and print what was fused, what was not, and why"
DETAILS = """

examples:
  tofuse explain train.py:loss --args "torch.randn(8, 64)"
  tofuse explain model.py --measure --html report.html"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target_arguments(parser)
    parser.add_argument(
        "--measure", action="store_true", help="time eager, compiled calls and each region"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--html", metavar="FILE", help="also write the report as a page")
    parser.add_argument("--trace", metavar="FILE", help="also write a trace for Perfetto")


def run(options: argparse.Namespace) -> int:
    target = load_target(options.target, options.args)
    explained = tofuse.explain(
        target.call, measure=options.measure, **parse_options(options.option)
    )
    steps = progress(_calls(explained, target), f"compile {target.name}", 1)
    (report,) = list(steps)
    report.name = target.name
    print(json.dumps(report.as_dict(), indent=2) if options.json else report)
    if options.html:
        report.save_html(options.html)
    if options.trace:
        report.save_trace(options.trace)
    return 0


def _calls(explained: Callable[..., ReportText], target: Target) -> Iterator[ReportText]:
    yield explained(*target.args, **target.kwargs)
