"""The documents say what the code prints."""

import pytest
import torch

import tofuse
from tests.support.documents import PAGE, Case, cases, run
from tofuse.report.advice import NOT_FUSED

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def words(line: str) -> str:
    return " ".join(line.split())


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: case.picture.stem)
def test_a_case_prints_what_the_page_says(case: Case, tmp_path):
    printed = [words(line) for line in str(run(case, tmp_path)).splitlines()]
    said = [words(line) for line in case.shown.splitlines() if line.strip()]
    assert any("->" in line for line in said)
    assert [line for line in said if line not in printed] == []


def test_three_cases_have_small_pictures():
    assert len(list(cases())) == 3
    for case in cases():
        assert 5_000 < case.picture.stat().st_size < 150_000


def test_every_rule_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    assert [a.title for _, a in NOT_FUSED if f"| {a.title} |" not in text] == []


def test_what_the_page_advises_helps():
    def parts(x):
        return x.softmax(-1).reshape(100, 2, 50).amax(-1)

    def gathered_first(ids, table, g):
        return torch.nn.functional.layer_norm(table[ids].tanh(), (table.shape[-1],), g)

    def column(x, w):
        return (x.tanh() @ w) * 2

    a = torch.randn(32, 32)
    for f, args in (
        (parts, (torch.randn(100, 100),)),
        (gathered_first, (torch.randint(0, 32, (64,)), a, a[0])),
        (column, (a, torch.randn(32, 1))),
    ):
        report = tofuse.explain(f)(*args)
        assert len(report.kernels) == 1 and not report.library_calls, f.__name__
