"""The report as text."""

import io

import pytest
import torch
from rich.console import Console

import tofuse
from tests.support.sample_reports import measured_block

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def test_text_lists_fused_pairs_rules_and_advice():
    report = measured_block()
    text = str(report)
    first = text.splitlines()[0]
    calls = len(report.library_calls)
    operations = report.launches_before
    assert first == f"block: {operations} operations as 2 kernels and {calls} library calls"
    for r in report.regions:
        equal = [o.name for o in report.regions if (o.ops, o.phase) == (r.ops, r.phase)]
        assert any(name in text for name in equal)
    for words in (
        "launches",
        "memory traffic",
        "fused: 27 pairs (23 elementwise over common axes, 4 reduction over",
        "One side is a library call (3)",
        "to do: ",
        "h = F.gelu(x @ w + b)",
        "sample_reports.py:",
        "measured",
    ):
        assert words in text, words
    assert max(map(len, text.splitlines())) <= 110
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_equal_launches_share_a_row():
    def f(x):
        for _ in range(5):
            x = (x @ x).relu()
        return x

    text = str(tofuse.explain(f)(torch.randn(8, 8)))
    assert "mm_0 x5" in text and "mm_2" not in text.partition("fused:")[0]


def test_long_source_lines_are_truncated_after_the_bytes():
    def f(x):
        return (x.sin() @ x).relu() + 1  # this comment makes the line longer than the table

    for line in str(tofuse.explain(f)(torch.randn(512, 512))).splitlines():
        if "->" in line and "return (x.sin()" in line:
            assert "1.05 MB" in line, line


def test_colour_in_terminals_only():
    report = tofuse.explain(lambda x: x.sin() + 1)(torch.randn(4))
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="standard", width=90).print(report)
    assert "\x1b[" in out.getvalue() and "\x1b[" not in str(report)
    assert "fused: 1 pair" in str(report)


def test_program_without_kernels():
    text = str(tofuse.explain(lambda x: x.view(-1))(torch.randn(2, 2)))
    assert "0 kernels" in text or text == "nothing was compiled"
