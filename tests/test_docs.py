"""docs/why-not-fused.md shows the real output of its programs."""

import pytest
import torch

import tofuse
from tests.support.documents import PAGE, Case, cases, run
from tofuse.ir.rules import Rule
from tofuse.report.advice import ADVICE

FUSED = (
    Rule.ELEMENTWISE,
    Rule.REDUCTION,
    Rule.GATHER,
    Rule.CONCAT_OPERANDS,
    Rule.SAME_LOOPS,
    Rule.SIBLINGS,
)

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def normalize_spaces(line: str) -> str:
    return " ".join(line.split())


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.picture.stem)
def test_case_prints_the_text_on_the_page(case: Case, tmp_path):
    printed = [normalize_spaces(line) for line in str(run(case, tmp_path)).splitlines()]
    shown = [normalize_spaces(line) for line in case.output.splitlines() if line.strip()]
    assert any("->" in line for line in shown)
    assert [line for line in shown if line not in printed] == []


def test_cases_have_small_pictures():
    assert len(list(cases())) == 3
    for case in cases():
        assert 5_000 < case.picture.stat().st_size < 150_000


def test_page_lists_every_rule():
    text = PAGE.read_text(encoding="utf-8")
    titles = {ADVICE[rule].title for rule in Rule if rule not in FUSED}
    assert [t for t in titles if f"| {t} |" not in text] == []


def test_advice_on_the_page_gives_one_kernel():
    def regrouped_by_parts_of_rows(x):
        return x.softmax(-1).reshape(100, 2, 50).amax(-1)

    def gathered_first(ids, table, g):
        return torch.nn.functional.layer_norm(table[ids].tanh(), (table.shape[-1],), g)

    def product_with_one_column(x, w):
        return (x.tanh() @ w) * 2

    a = torch.randn(32, 32)
    for f, args in (
        (regrouped_by_parts_of_rows, (torch.randn(100, 100),)),
        (gathered_first, (torch.randint(0, 32, (64,)), a, a[0])),
        (product_with_one_column, (a, torch.randn(32, 1))),
    ):
        report = tofuse.explain(f)(*args)
        assert len(report.kernels) == 1 and not report.library_calls, f.__name__
