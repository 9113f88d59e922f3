"""The golden table: kernels, library calls and bytes of each program of the corpus.

`pytest --accept` rewrites the lines of the tests that run. The table is for vectors of 16 floats
(the fixture `sixteen_lanes`) and one release of PyTorch, because decompositions differ between
releases.
"""

from pathlib import Path

import torch

from tofuse.report.model import Report

TABLE = Path(__file__).parents[1] / "golden" / "kernels.txt"
TITLE = "# program, phase: kernels, library calls, bytes op by op -> bytes of the kernels and calls"


MADE_UNDER = "2.13."


def assert_golden(name: str, report: Report, accept: bool) -> None:
    """Assert that the table has exactly the lines of a program's report."""
    if not torch.__version__.startswith(MADE_UNDER):
        return
    phases = sorted({g.phase for g in report.graphs})
    lines = [_line(name, phase, report.phase(phase)) for phase in phases]
    table = TABLE.read_text().splitlines() if TABLE.exists() else [TITLE]
    known = [line for line in table if line.startswith(f"{name} ")]
    if accept and known != lines:
        rest = [line for line in table[1:] if line not in known]
        TABLE.write_text("\n".join([TITLE, *sorted([*rest, *lines])]) + "\n")
    else:
        assert lines == known, "the decisions have changed; see the table, or run with --accept"


def _line(name: str, phase: str, part: Report) -> str:
    counts = f"{len(part.kernels)} kernels {len(part.library_calls)} calls"
    return f"{name} {phase}: {counts} {part.bytes_before} -> {part.bytes_after} bytes"
