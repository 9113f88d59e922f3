"""The suite over torch's operator database catches each kind of fault, and finds the sample."""

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError

from suites.harness import Result
from suites.operators.calls import Call, relayout
from suites.operators.check import Checker
from suites.operators.coverage import coverage_page
from suites.operators.modules import (
    module_calls,
    module_infos,
    optimizer_calls,
    optimizer_infos,
)
from suites.opinfo import list_cases, summarize_case

SIZES = (2, 3, 4, 5)


def calls(fn):
    return [Call(fn, (torch.randn(n, n + 1, requires_grad=True),)) for n in SIZES]


def planted(tamper):
    """A compiler whose programs run in eager; `tamper` changes the result of the third call."""

    def compile_program(program):
        def run(*tensors):
            results = list(program(*tensors))
            third = [k for k, t in enumerate(tensors) if t.shape == (SIZES[2], SIZES[2] + 1)]
            for k in third:
                results[k] = tamper(results[k], tensors[k])
            return tuple(results)

        return run

    return Checker(compiler=lambda report, dynamic: compile_program)


def raise_(error):
    raise error


FAULTS = {
    "numbers differ": lambda r, x: r + 1e-4,
    "strides": lambda r, x: r.t().contiguous().t(),
    "aliasing": lambda r, x: x * 1.0 if r is x else x.sin().set_(x.detach()),
    "float64": lambda r, x: r.double(),
    "raises ValueError": lambda r, x: raise_(ValueError("no")),
    "requires_grad": lambda r, x: r.detach(),
    "gradient 0": lambda r, x: r.detach() + x - x.detach(),
    "after the call": lambda r, x: (x.data.add_(1e-3), r)[1],
}


@pytest.mark.parametrize("difference", FAULTS)
def test_a_planted_fault_is_found(difference):
    fn = (lambda x: x) if difference == "aliasing" else torch.neg
    found = planted(FAULTS[difference]).check(calls(fn))
    assert len(found.failures) == 1 and found.unconfirmed == 0
    assert difference in found.failures[0] and "float32[4, 5]" in found.failures[0]
    assert summarize_case("sin/float32/contiguous", found).status == "failed"


def test_another_type_of_error_is_found():
    def check(x):
        raise IndexError("of eager")

    def compile_program(program):
        return lambda *tensors: raise_(KeyError("ours"))

    found = Checker(compiler=lambda report, dynamic: compile_program).check(calls(check)[:1])
    assert found.refused == 1
    assert "raises KeyError: 'ours' for IndexError: of eager" in found.failures[0]


def refuses(x):
    raise RuntimeError("of eager")


def failing(error):
    """A compiler whose programs raise an error."""

    def compile_program(program):
        return lambda *tensors: raise_(error)

    return Checker(compiler=lambda report, dynamic: compile_program)


@pytest.mark.parametrize(
    "error",
    [
        BackendCompilerFailed(torch.neg, KeyError("ours"), None),
        BackendCompilerFailed(torch.neg, AssertionError("ours"), None),
        InternalTorchDynamoError("ours"),
    ],
)
def test_an_error_of_the_compiler_is_not_eagers_runtime_error(error):
    found = failing(error).check(calls(refuses)[:1])
    assert len(found.failures) == 1 and "ours" in found.failures[0]
    wrapped = BackendCompilerFailed(torch.neg, RuntimeError("of eager"), None)
    assert not failing(wrapped).check(calls(refuses)[:1]).failures


def test_a_program_that_raises_while_each_of_its_calls_is_right_is_a_failure():
    def compile_program(program):
        return lambda *tensors: raise_(KeyError("ours")) if len(tensors) > 1 else program(*tensors)

    found = Checker(compiler=lambda report, dynamic: compile_program).check(calls(torch.neg))
    assert len(found.failures) == 2 and "together only: KeyError: 'ours'" in found.failures[0]
    assert summarize_case("neg/float32/contiguous", found).status == "failed"


def test_what_is_right_is_counted_by_who_runs_it():
    found = Checker().check(calls(torch.sin))
    assert found.kernels and not found.failures
    assert summarize_case("sin/float32/contiguous", found).status == "fused"


def test_a_known_difference_is_no_failure_and_excuses_no_other():
    case = "native_group_norm/float32/strided"
    found = planted(FAULTS["strides"]).check(calls(torch.sin))
    assert summarize_case(case, found).status == "failed"
    found.failures = [
        "f(): returns; eager raises RuntimeError: Expected X.is_contiguous(memory_format)"
    ]
    assert summarize_case(case, found).status == "known"
    assert summarize_case("sin/float32/strided", found).status == "failed"
    found.unconfirmed = 1  # nobody saw how it differs
    assert summarize_case(case, found).status == "failed"
    found.unconfirmed, found.failures = 0, [*found.failures, "f(): result 0: strides"]
    assert summarize_case(case, found).status == "failed"


def test_the_headline_counts_what_was_compared_and_is_right():
    statuses = ("fused", "pytorch", "refused", "known", "skipped", "failed")
    results = {f"f{k}/float32/out": Result("", s) for k, s in enumerate(statuses)}
    page = " ".join(coverage_page(results, ("float32",)).split())
    assert "3 of 5 cases are as in eager" in page
    assert "1 fail, 1 have a known difference. 1 more cases have no samples." in page


def test_random_results_may_be_any_of_eagers():
    draw = lambda x: torch.nn.functional.dropout(x, 0.5)  # noqa: E731
    assert not planted(lambda r, x: r).check(calls(draw)).failures
    assert planted(lambda r, x: r * 1.5).check(calls(draw)).failures
    assert planted(lambda r, x: r * 0).check(calls(draw)).failures
    for fn in (torch.rand_like, torch.randn_like, torch.empty_like):
        assert not planted(lambda r, x, fn=fn: fn(r)).check(calls(fn)).failures
    assert planted(lambda r, x: ~r).check(calls(torch.isfinite)).failures
    nan = lambda x: torch.log(-x.abs() - 1)  # noqa: E731
    assert planted(lambda r, x: r.nan_to_num(0.5)).check(calls(nan)).failures
    for wrong in (torch.nan, torch.inf, -1.5, 2.5):
        fill = planted(lambda r, x, wrong=wrong: r.detach().fill_(wrong))
        assert fill.check(calls(torch.rand_like)).failures


def test_modules_are_compared_with_their_parameters_and_buffers():
    info = module_infos()["module/nn.BatchNorm1d"]
    found = Checker().check(module_calls(info, torch.float32, "train")[:2])
    assert found.calls == 2 and found.kernels and not found.failures
    third = [torch.nn.BatchNorm1d(3) for _ in range(3)]
    found = planted_buffer().check([Call(m, (torch.randn(2, 3),)) for m in third])
    assert "argument 3 after the call" in found.failures[0]


def planted_buffer():
    """A compiler that forgets to update the running mean."""

    def compile_program(program):
        def run(*tensors):
            results = program(*tensors)
            for value in program.__globals__.values():
                if isinstance(value, torch.nn.BatchNorm1d):
                    value.get_buffer("running_mean").data.zero_()
            return results

        return run

    return Checker(compiler=lambda report, dynamic: compile_program)


def test_steps_of_an_optimizer_are_compared():
    info = optimizer_infos()["optimizer/SGD"]
    steps = optimizer_calls(info, torch.float32, "loop")[:1]
    assert not Checker().check_steps(steps).failures
    twice = Checker(compiler=lambda report, dynamic: lambda step: lambda: (step(), step()))
    assert "numbers differ" in twice.check_steps(steps).failures[0]


@pytest.mark.parametrize("layout", ["transposed", "strided"])
def test_another_layout_keeps_shape_and_values(layout):
    x = torch.randn(2, 3, 4)
    y = relayout(x, layout)
    assert torch.equal(x, y) and x.stride() != y.stride()


def test_every_kind_of_case_is_listed():
    cases = list_cases()
    assert len(cases) == len(set(cases)) > 10_000
    for kind in ("dynamic", "expanded", "inplace", "out"):
        assert f"add/float32/{kind}" in cases
    assert "module/nn.Linear/float32/train" in cases
    assert "optimizer/Adam/float32/foreach" in cases
    assert "add/any/errors" in cases and "nn.functional.gelu/float16/contiguous" in cases
