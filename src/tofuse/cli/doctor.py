"""`tofuse doctor`: print the findings of checks of this machine, with advice."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tofuse.cli.progress import progress
from tofuse.driver.diagnose import CHECKS, Finding

SUMMARY = "check torch, the processor, threads, the cache and the GPU"
DETAILS = """Each check
prints a finding and its meaning; advice follows an arrow. The exit code is 1 if tofuse cannot
compile here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    findings = list(progress((check() for check in CHECKS), "check", len(CHECKS)))
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        Console().print(_table(findings))
    return 1 if any(finding.severity == "error" for finding in findings) else 0


def _table(findings: list[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for finding in findings:
        sign, style = SIGNS[finding.severity]
        text = Text(finding.found)
        if finding.meaning:
            text.append(f"\n{finding.meaning}", "dim")
        if finding.todo:
            text.append(f"\n-> {finding.todo}", style)
        table.add_row(Text(sign, style), Text(finding.subject, "bold"), text)
    return table


SIGNS = {"ok": ("ok", "green"), "hint": ("!", "yellow"), "error": ("x", "red")}
