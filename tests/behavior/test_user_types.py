"""What a type checker knows of the public functions: `make test` checks this file with mypy."""

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import assert_type

import tofuse
from tofuse.report.recompile_report import RecompileReport
from tofuse.report.report_text import ReportText


def scale(x: Tensor, factor: float = 2.0) -> Tensor:
    return x * factor


@tofuse.compile
def doubled(x: Tensor) -> Tensor:
    return x + x


@tofuse.compile(dynamic=True)
def halved(x: Tensor) -> Tensor:
    return x / 2


def test_compiled_functions_and_modules_keep_their_types(fresh_dynamo: None) -> None:
    x = torch.ones(3)
    assert_type(tofuse.compile(scale)(x, factor=3.0), Tensor)
    assert_type(tofuse.memory_efficient_fusion(scale)(x), Tensor)
    assert_type(doubled(x), Tensor)
    assert_type(halved(x), Tensor)
    assert_type(tofuse.compile(torch.nn.Linear(3, 2)), torch.nn.Linear)


def test_reports_have_types(fresh_dynamo: None) -> None:
    report = tofuse.explain(scale)(torch.ones(3))
    assert_type(report, ReportText)
    assert_type(report.bytes_before, int)
    assert_type(report.compile_ms, float)
    assert_type(tofuse.explain_recompiles(), RecompileReport)
    assert_type(tofuse.memory_stats(), dict[str, int])


def test_definitions_have_types() -> None:
    with tofuse.FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=[True], dtype=tofuse.DataType.Float)
        fd.add_output(x * 2.0 + x)
    assert torch.equal(fd.execute([torch.ones(3)])[0], torch.full((3,), 3.0))


def test_hints_decorate(fresh_dynamo: None) -> None:
    hinted: Callable[[Tensor], Tensor] = tofuse.no_fuse(doubled)
    assert torch.equal(hinted(torch.ones(2)), torch.full((2,), 2.0))
