"""The table of distributed training, and the simulation of overlap, without other processes."""

import pytest
import torch

from suites.distributed.llama import SMALL
from suites.distributed.measure import largest_difference
from suites.distributed.predictions import report_of_block
from suites.distributed.simulate import Network, predict
from suites.distributed.table import Data, list_cases, page
from suites.harness import Result

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

MEASURED: Data = {
    "difference": 1e-6, "tolerance": 1e-4, "kernels": 9, "notes": [], "inductor_error": "",
    "eager_ms": 10.0, "tofuse_ms": 5.0, "inductor_ms": 7.5,
    "eager_peak": 3e6, "tofuse_peak": 2e6, "inductor_peak": 2.5e6,
    "eager_sent": 1e6, "tofuse_sent": 1e6, "inductor_sent": 1e6,
}  # fmt: skip


def test_the_page_has_what_ran():
    results = {
        "tensor parallel@2": Result("tensor parallel@2", "ok", "", MEASURED),
        "DDP, compiled inside@4": Result("DDP, compiled inside@4", "failed", "differs by 2e-01"),
        "FSDP2, whole@2": Result(
            "FSDP2, whole@2", "ok", "",
            {**{k: v for k, v in MEASURED.items() if k[:9] != "inductor_"},
             "inductor_error": "RuntimeError"},
        ),
        "killed and resumed@4": Result(
            "killed and resumed@4", "ok", "losses differ by 0e+00",
            {"first_s": 9.0, "resumed_first_s": 5.0, "difference": 0.0},
        ),
        "overlap@2": Result("overlap@2", "ok", "", {"forward": ["1000", "1100", "1500"]}),
        "on paper@8": Result("on paper@8", "ok", "", {"a network": ["900", "600", "150"]}),
    }  # fmt: skip
    assert results.keys() <= set(list_cases())
    text = page(results)
    assert (
        "| tensor parallel | 9 | 1e-06 | 10.0 | 2.00 | 1.50 | 3.00, 2.00, 2.50 | 1.00 / 1.00 |"
        in text
    )
    assert "| FSDP2, whole | 9 | 1e-06 | 10.0 | 2.00 | (RuntimeError) | 3.00, 2.00, - |" in text
    assert "| DDP, compiled inside | failed: differs by 2e-01 |" in text
    assert "Losses differ by 0e+00 of their value." in text
    assert "| 2 | forward | 1.0 | 1.1 | 1.5 |" in text
    assert "| 8 | a network | 0.90 | 0.60 | 0.15 | 75% |" in text
    assert "<!--" not in text


def test_differences_are_shares_of_the_largest_number():
    eager = [[torch.tensor([4.0, 0.0]), None]]
    assert largest_difference([[torch.tensor([4.0, 1.0]), None]], eager) == 0.25
    assert largest_difference([[torch.tensor([4.0, torch.nan]), None]], eager) == float("inf")
    assert largest_difference([[torch.tensor([4.0, 0.0]), torch.ones(1)]], eager) == float("inf")


def test_what_runs_beside_collectives_hides_them():
    ranks = 4
    report = report_of_block(ranks, SMALL)
    (backward,) = report.backward.graphs
    collectives = report.backward.collectives
    ready = predict(backward, Network(0.0, float("inf")), ranks, lambda region: 10.0)
    assert ready.total_us == ready.compute_us > 0 and ready.communication_us == 0
    slow = predict(backward, Network(1000.0, float("inf")), ranks, lambda region: 10.0)
    assert slow.communication_us == 1000 * len(collectives)
    hidden = slow.communication_us - slow.exposed_us
    assert hidden == 10 * sum(len(c.overlapped) for c in collectives) > 0
    narrow = predict(backward, Network(0.0, 1e9), ranks, lambda region: 0.0)
    sent = [max(c.operand_bytes, c.result_bytes) * (ranks - 1) / ranks for c in collectives]
    assert narrow.exposed_us == pytest.approx(narrow.communication_us)
    assert narrow.communication_us == pytest.approx(sum(sent) / 1e3)
