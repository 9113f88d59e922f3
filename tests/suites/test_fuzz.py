"""Random programs are reproducible and right; a planted fault is found, made small, and printed."""

import runpy

import pytest
import torch

from suites.fuzz.call import call
from suites.fuzz.case import run_case, show_case
from suites.fuzz.compare import Fault, Outcome, find_differences
from suites.fuzz.generate import generate
from suites.fuzz.guard_pages import GuardPages
from suites.fuzz.program import (
    Statement,
    from_json,
    function_source,
    load_function,
    statement_lines,
)
from suites.fuzz.run import Variant, check
from suites.fuzz.shrink import shrink
from suites.fuzz.standalone import standalone
from suites.fuzz.tame import has_many_pieces, rounds_unseen
from suites.harness import Worker
from tests.suites.faulty_programs import LONG

FAULTY = "tests.suites.faulty_programs"
COSINE = Variant((("capture", "trace"), ("executors", ("cosine", "llvm"))))
REFUSED = (16, 18)  # by capture="trace"; Dynamo breaks the graph


@pytest.mark.parametrize("seed", range(26))
def test_a_random_program_is_compared_and_right(seed):
    capture = () if seed in REFUSED else (("capture", "trace"),)
    fault = check(generate(seed), Variant(options=(*capture, ("strict", True))))
    assert fault is None, f"python -m suites.fuzz --seed {seed}"


def test_a_program_that_every_variant_refuses_has_not_passed():
    result = run_case(show_case(generate(REFUSED[0]), Variant(options=(("capture", "trace"),))))
    assert result.status == "refused" and "capture='trace' cannot trace" in result.detail


def test_a_fault_of_torch_is_of_the_same_tensor_and_sizes():
    fault = Fault("strides", "as ours", "result 0", (5, 8))
    assert fault.same_as(Fault("strides", "as torch's", "result 0", (5, 8)))
    assert not fault.same_as(Fault("strides", "as ours", "result 1", (5, 8)))
    assert not fault.same_as(Fault("strides", "as ours", "result 0", (1, 16)))


def test_a_seed_gives_the_same_program_again():
    for seed in range(100, 110):
        program = generate(seed)
        assert generate(seed) == program
        assert from_json(program.to_json()) == program


def test_a_planted_fault_is_found_and_shrunk_to_its_statement():
    fault = check(LONG, COSINE)
    assert fault is not None and fault.kind == "wrong result"

    def fails(program, variant):
        again = None
        if runs(program):
            again = check(program, variant)
        return again is not None and again.kind == fault.kind

    program, variant = shrink((LONG, COSINE), fails, seconds=60)
    assert [s.text for s in program.statements] == ["v3 = torch.sinc(x0)"]
    assert len(program.inputs) == len(program.sizes) == 1
    assert variant.options == COSINE.options[1:]


def runs(program):
    try:
        call(program, load_function(function_source(program)), program.sizes[0])
    except (RuntimeError, IndexError, NameError):
        return False
    return True


@pytest.mark.parametrize("variant, different", [(COSINE, True), (Variant(), False)])
def test_a_printed_program_runs_alone_and_shows_what_differs(variant, different, tmp_path, capsys):
    path = tmp_path / "program.py"
    path.write_text(standalone(LONG, variant, "wrong result"))
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(path))
    assert end.value.code is different
    assert ("in eager" in capsys.readouterr().out) is different


def test_one_byte_out_of_bounds_is_seen_between_guard_pages():
    worker = Worker(FAULTY)
    try:
        for executor, side in ("reads_behind", "end"), ("reads_before", "start"):
            options = (("capture", "trace"), ("executors", (executor, "llvm")))
            if side == "end":
                assert worker.run(show_case(LONG, Variant(options)), 60).status == "passed"
            guarded = worker.run(show_case(LONG, Variant(options, canaries=side)), 60)
            assert guarded.status == "crashed" and "SIGSEGV" in guarded.detail
    finally:
        worker.stop()


def test_guarded_tensors_are_as_others():
    guard = GuardPages("end")
    x = torch.arange(12.0).reshape(3, 4)
    plain, part, again = guard.copies([x, x[1:, ::2], x])
    assert again is plain
    assert torch.equal(plain, x) and torch.equal(part, x[1:, ::2])
    part.zero_()
    assert plain[1:, ::2].eq(0).all()
    assert guard.empty((2, 0), (1, 1), torch.float32).shape == (2, 0)
    assert guard.empty((2, 3), (1, 2), torch.int16).stride() == (1, 2)


def test_rounding_errors_reach_parts_of_a_statement():
    inner = Statement("v1 = x0.tanh() * 2", rounds="torch.float64", operands="torch.float32")
    assert statement_lines(inner, jitter=True) == [
        "v1 = jitter(jitter(x0.tanh(), 3 * torch.finfo(torch.float32).eps) * 2,"
        " torch.finfo(torch.float64).eps)"
    ]
    inner = Statement("x0[0] = x1.sum()", (), "torch.float64", "torch.float32", written="x0")
    assert "3 * torch.finfo(torch.float32).eps" in statement_lines(inner, jitter=True)[1]
    (norm,) = statement_lines(Statement("v1 = F.normalize(x0)", rounds="torch.float32"), True)
    assert "mix(F.normalize(x0), F.normalize(jitter(x0" in norm
    exact = Statement("v1 = x0.T")
    assert statement_lines(exact, jitter=True) == [exact.text]


NORM = "v1 = F.layer_norm(x0, x0.shape[-1:])"
UNSEEN = [
    (NORM, torch.tensor([1.0, 2.0]), False),
    (NORM, torch.tensor([1.0, 1.001]), True),  # the error of the mean
    ("v1 = x0.tanh()", torch.tensor([0.5, 9.0]), False),
    ("v1 = x0.tanh()", torch.tensor([9.0, -9.0]), True),  # 1 - 1
    ("v1 = F.cosine_similarity(x0, x0, dim=1)", torch.ones(1, 3), True),
    ("v1 = F.cosine_similarity(x0, x1, dim=0)", torch.ones(1, 3), True),
    ("v1 = F.cosine_similarity(x0, x1, dim=1)", torch.ones(1, 3), False),
    ("v1 = F.cosine_similarity(x0, x1, dim=1)", torch.ones(2, 1).expand(2, 3), True),
    ("v1 = F.normalize(x0, dim=1)", torch.ones(3, 1), True),
    ("v1 = F.normalize(x0, dim=0)", torch.ones(3, 1), False),
]


@pytest.mark.parametrize(("text", "x", "unseen"), UNSEEN)
def test_statements_whose_rounding_the_referee_cannot_see(text, x, unseen):
    names = {"x0": x.requires_grad_(), "x1": x.detach()}
    assert rounds_unseen(text, names) is unseen


def test_splits_that_torch_traces_for_minutes_are_left_out():
    names: dict[str, object] = {"x0": torch.ones(2, 129), "x1": torch.ones(128, 2)}
    assert has_many_pieces("v1 = x0.unbind(-1)[-1]", names)
    assert not has_many_pieces("v1 = x1.hsplit(2)[0]", names)
    assert not has_many_pieces("v1 = x0.sum()", names)


def test_every_difference_is_found():
    """Torch may have the second of two, by which the first is excused."""
    x = torch.ones(2, 3)
    ours, eagers = Outcome([x.t(), x.clone()], [], []), Outcome([x.t().contiguous(), x.t()], [], [])
    kinds = [f.kind for f in find_differences(ours, eagers)]
    assert kinds == ["strides", "shape"]
