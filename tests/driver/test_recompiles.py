"""`tofuse.explain_recompiles`: what changed, the line, and what to write."""

import json

import pytest
import torch

import tofuse

OFFSET = 3


def scaled(x, n, xs, mode="plain"):
    y = x * n + OFFSET
    for z in xs:
        y = y + z
    return y if mode == "plain" else -y


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 1

    def forward(self, x):
        return x * self.scale if self.training else x + 1


def causes():
    return [(r.function.split(" ")[0], r.change) for r in tofuse.explain_recompiles().recompiles]


@pytest.fixture
def x(fresh_dynamo, empty_cache_on_disk):
    torch._dynamo.utils.guard_failures.clear()
    return torch.randn(4, 5)


def test_nothing_was_compiled_again(x):
    compiled = tofuse.compile(scaled)
    compiled(x, 2, [x])
    compiled(x, 2, [x])
    report = tofuse.explain_recompiles()
    assert report.recompiles == ()
    assert str(report).startswith("0 recompilations, ")


@pytest.mark.parametrize(
    ("args", "change", "line", "todo"),
    [
        (lambda x: (x.double(), 2, [x]), "x.dtype: Float, then Double", "", "Convert x"),
        (lambda x: (x[1:], 2, [x[1:]]), "x.size(0): 4, then 3", "", "dynamic=True"),
        (lambda x: (x.t(), 2, [x.t()]), "x.size(0): 4, then 5", "", "dynamic=True"),
        (lambda x: (x[0], 2, [x]), "x.dim(): 2, then 1", "", "a program of its own"),
        (lambda x: (x, 3, [x]), "n was 2", "y = x * n + OFFSET", "torch.tensor(2)"),
        (lambda x: (x, 2, [x, x]), "xs had 1 elements", "for z in xs:", "pad them"),
        (lambda x: (x, 2, [x], "minus"), "mode was 'plain'", "return y if mode", "few values"),
    ],
)
def test_each_recompilation_names_what_changed(x, args, change, line, todo):
    compiled = tofuse.compile(scaled)
    compiled(x, 2, [x])
    compiled(*args(x))
    (recompile,) = tofuse.explain_recompiles().recompiles
    assert recompile.function == f"scaled (test_recompiles.py:{scaled.__code__.co_firstlineno})"
    assert recompile.change == change
    assert line in recompile.line and todo in recompile.todo
    assert bool(recompile.line) == bool(line)


def test_types_of_numbers(x):
    compiled = tofuse.compile(scaled)
    for n in (2, 3, 3.5):
        compiled(x, n, [x])
    assert causes() == [("scaled", "n was 2"), ("scaled", "n was of type int")]


def test_grad_mode(x):
    compiled = tofuse.compile(scaled)
    square = x[:4, :4].contiguous()
    compiled(square, 2, [square])
    with torch.no_grad():
        compiled(square.requires_grad_(), 2, [square])
    assert causes() == [("scaled", "grad mode changed")]


def test_strides(x):
    compiled = tofuse.compile(scaled)
    square = x[:4, :4].contiguous()
    compiled(square, 2, [square])
    compiled(square.t(), 2, [square])
    assert causes() == [("scaled", "x.stride(0): 4, then 1")]


def test_many_programs_of_one_function_each_have_a_cause(x):
    """The program used last is the one compared with, in whichever order they were used."""
    compiled = tofuse.compile(scaled)
    for n in (2, 3, 4, 2, 5, 3, 6):
        compiled(x, n, [x])
    compiled(x, 2, [x])
    compiled(x, 2, [x, x])
    assert [change for _, change in causes()] == ["n was 2", "xs had 1 elements"]


def test_modules_are_named_by_class_and_attributes_by_self(x):
    compiled = tofuse.compile(Net())
    compiled(x)
    compiled.eval()(x)
    compiled.train()
    compiled.scale = 2
    compiled(x)
    first, second = tofuse.explain_recompiles().recompiles
    assert (first.function, first.change) == ("Net", "self.training was True")
    assert (second.function, second.change) == ("Net", "self.scale was 1")
    assert first.line.endswith("return x * self.scale if self.training else x + 1")


def test_a_size_that_the_program_branches_on(x):
    def branch(x):
        return x * 2 if x.shape[0] > 6 else x

    compiled = tofuse.compile(branch, dynamic=True)
    compiled(x)
    compiled(torch.randn(9, 5))
    (recompile,) = tofuse.explain_recompiles().recompiles
    assert recompile.change.startswith("the sizes no longer fit the program: it needs ")
    assert recompile.line.endswith("return x * 2 if x.shape[0] > 6 else x")


def test_graph_breaks_have_a_line_and_what_to_write(x):
    def broken(x):
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2 if y.sum() > 0 else y

    before = len(tofuse.explain_recompiles().graph_breaks)
    tofuse.compile(broken)(x)
    report = tofuse.explain_recompiles()
    call, branch = report.graph_breaks[before:]
    assert call.line.endswith("torch._dynamo.graph_break()")
    assert branch.line.endswith("return y * 2 if y.sum() > 0 else y")
    assert "torch.where" in branch.todo
    assert "graph break: a branch depends on the values of a tensor" in str(report)
    assert json.loads(json.dumps(report.as_dict()))["graph_breaks"][before]["line"] == call.line
