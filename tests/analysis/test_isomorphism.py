"""Random branches match if and only if they are isomorphic; rewritten programs equal eager.

The same programs are matched before autograd (FX nodes) and after it (ops of a graph).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.support.numbers import plain_inputs
from tofuse.analysis.isomorphism import (
    BranchMatcher,
    BranchNode,
    Equal,
    Shared,
    Sliced,
    SliceRead,
    Stacked,
)
from tofuse.capture.pre_autograd.branch_nodes import describe
from tofuse.capture.pre_autograd.vectorize import vectorize
from tofuse.ir.parse_graph import parse_graph
from tofuse.ops.check_graph import check_graph
from tofuse.ops.reference import run_graph
from tofuse.passes.batch.batch_branches import batch_branches
from tofuse.passes.batch.branch_match import ConcatBranches

ROWS, COLUMNS = 2, 6  # of a branch's slice
Op = Callable[..., Tensor]
UNARY: dict[str, Op] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "tanh": torch.tanh,
    "square": torch.square,
}
BINARY: dict[str, Op] = {"add": torch.add, "mul": torch.mul, "maximum": torch.maximum}


@dataclass(frozen=True)
class Step:
    """`v = op(v)`, or `op(v, c)` with a number, with `w` of all branches, or a slice of `y`."""

    op: str
    operand: str = ""  # "", "constant", "w", "y" or "columns"
    constant: float = 0.0
    start: int = 0
    step: int = 1


@dataclass(frozen=True)
class Branch:
    start: int  # of the rows of x and y
    steps: tuple[Step, ...]


def random_branches(rng: random.Random, perturbed: bool) -> list[Branch]:
    """Return isomorphic branches; one of them, at random, differs in one place if `perturbed`."""
    steps = tuple(random_step(rng) for _ in range(rng.randint(1, 5)))
    start, step = rng.randrange(3), rng.choice((1, 1, 2))
    steps = (Step("slice", "columns", start=start, step=step), *steps)
    branches = [Branch(ROWS * k, steps) for k in range(rng.choice((3, 8)))]
    if perturbed:
        k = rng.randrange(len(branches))
        branches[k] = perturb(rng, branches[k])
    return branches


def random_step(rng: random.Random) -> Step:
    match rng.choice(("unary", "constant", "w", "y")):
        case "unary":
            return Step(rng.choice(tuple(UNARY)))
        case "constant":
            return Step(rng.choice(("add", "mul")), "constant", rng.choice((0.5, 2.0, -1.0)))
        case operand:
            return Step(rng.choice(tuple(BINARY)), operand)


def perturb(rng: random.Random, branch: Branch) -> Branch:
    """Return a branch with another row, column, step, constant, op or operand."""
    if rng.randrange(5) == 0:
        return replace(branch, start=branch.start + 1)
    k = rng.randrange(len(branch.steps))
    step = branch.steps[k]
    if step.operand == "columns":
        move = rng.randrange(2) == 0
        other = replace(step, start=step.start ^ 1) if move else replace(step, step=3 - step.step)
    elif step.operand == "constant" and rng.randrange(2):
        other = replace(step, constant=step.constant + 1)
    elif step.operand in ("w", "y") and rng.randrange(2):
        other = replace(step, operand="y" if step.operand == "w" else "w")
    else:
        names = tuple(BINARY) if step.operand in ("w", "y") else tuple(UNARY)
        names = ("add", "mul") if step.operand == "constant" else names
        other = replace(step, op=names[(names.index(step.op) + 1) % len(names)])
    return replace(branch, steps=(*branch.steps[:k], other, *branch.steps[k + 1 :]))


def graph_text(branches: list[Branch]) -> str:
    rows, shape = ROWS * len(branches) + 1, f"({ROWS}, 2)"
    lines = [f"graph(x: f32[{rows},{COLUMNS}], y: f32[{rows},2], w: f32[{ROWS},2]) {{"]
    results = []
    for k, branch in enumerate(branches):
        v = "x"
        for n, step in enumerate(branch.steps):
            result, start = f"v{k}_{n}", f"start=({branch.start}, {step.start})"
            match step.operand:
                case "columns":
                    right = f"slice(x, {start}, step=(1, {step.step}), shape={shape}, dtype=f32)"
                case "":
                    right = f"mul({v}, {v})" if step.op == "square" else f"{step.op}({v})"
                case "constant":
                    right = f"{step.op}({v}, {step.constant})"
                case "w":
                    right = f"{step.op}({v}, w)"
                case _:
                    read = f"slice(y, {start}, step=(1, 1), shape={shape}, dtype=f32)"
                    lines.append(f"y{k}_{n} = {read} : f32[{ROWS},2]")
                    right = f"{step.op}({v}, y{k}_{n})"
            lines.append(f"{result} = {right} : f32[{ROWS},2]")
            v = result
        results.append(v)
    joined = f"cat({', '.join(results)}, dim=0) : f32[{ROWS * len(branches)},2]"
    return "\n".join([*lines, f"out = {joined}", "return out", "}"])


def torch_program(branches: list[Branch]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def program(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        results = []
        for branch in branches:
            rows, v = slice(branch.start, branch.start + ROWS), x
            for step in branch.steps:
                match step.operand:
                    case "columns":
                        v = x[rows, step.start : step.start + 2 * step.step : step.step]
                    case "":
                        v = UNARY[step.op](v)
                    case "constant":
                        v = BINARY[step.op](v, step.constant)
                    case "w":
                        v = BINARY[step.op](v, w)
                    case _:
                        v = BINARY[step.op](v, y[rows])
            results.append(v)
        return torch.cat(results)

    return program


class _Examples(torch.fx.Interpreter):
    def run_node(self, n: torch.fx.Node) -> object:
        n.meta["example_value"] = super().run_node(n)
        return n.meta["example_value"]


def test_branches_of_a_graph():
    rng = random.Random(1)
    for case in range(200):
        perturbed = case % 2 == 1
        graph = parse_graph(graph_text(random_branches(rng, perturbed)))
        check_graph(graph)
        concats, cat = ConcatBranches(graph), graph.ops[-1]
        assert (concats.matcher.match(cat.inputs) is None) == perturbed, graph
        ranges = concats.matching_ranges(cat)
        assert (ranges == [(0, len(cat.inputs))]) == (not perturbed)
        after = batch_branches(graph)
        check_graph(after)
        if not perturbed:
            assert after is not graph
        if case % 4 == 0 or (perturbed and after is not graph):
            inputs = plain_inputs(graph, torch.Generator().manual_seed(case))
            (old,), (new,) = graph.outputs, after.outputs
            assert old is not None and new is not None
            results = run_graph(graph, inputs, {})[old], run_graph(after, inputs, {})[new]
            torch.testing.assert_close(*results)


def test_branches_of_fx_nodes():
    rng = random.Random(2)
    for case in range(60):
        perturbed = case % 2 == 1
        branches = random_branches(rng, perturbed)
        program, rows = torch_program(branches), ROWS * len(branches) + 1
        inputs = [torch.randn(rows, COLUMNS), torch.randn(rows, 2), torch.randn(ROWS, 2)]
        gm = torch.fx.symbolic_trace(program)
        mode = FakeTensorMode()
        with mode:
            _Examples(gm).run(*map(mode.from_tensor, inputs))
        (concat,) = [n for n in gm.graph.nodes if n.target is torch.cat]
        found = BranchMatcher(describe).match(tuple(concat.args[0]))
        assert (found is None) == perturbed, gm.graph
        after, notes = vectorize(gm)
        assert bool(notes) == (not perturbed and len(branches) == 8)
        torch.testing.assert_close(after(*inputs), program(*inputs))


def sliced(start: int) -> BranchNode[str]:
    read = SliceRead("x", (start,), (3,), (1,))
    return BranchNode("slice", ("x",), attrs=(("start", str(start)),), slice=read)


NODES: dict[str, BranchNode[str]] = {
    "x": BranchNode("", size="9", leaf=True),
    "a": sliced(0),
    "b": sliced(3),
    "c": sliced(7),
    "p": BranchNode("mm", leaf=True, size="3"),
    "q": BranchNode("mm", leaf=True, size="3"),
    "r": BranchNode("mm", leaf=True, size="4"),
    "random": BranchNode("uniform", unique=True),
    "fa": BranchNode("add", ("a", "p")),
    "fb": BranchNode("add", ("b", "q")),
    "fc": BranchNode("add", ("c", "q")),
    "fr": BranchNode("add", ("b", "r")),
    "aa": BranchNode("mul", ("a", "a")),
    "ab": BranchNode("mul", ("a", "b")),
    "bc": BranchNode("mul", ("b", "c")),
    "half": BranchNode("mul", ("a",), (("constant", "0.5"),)),
    "third": BranchNode("mul", ("b",), (("constant", "0.3"),)),
}


@pytest.mark.parametrize(
    ("root", "roles"),
    [
        (("a", "b"), [Sliced]),
        (("b", "a"), None),
        (("a", "c"), None),
        (("p", "q"), [Stacked]),
        (("p", "r"), None),
        (("p", "p"), [Shared]),
        (("fa", "fb"), [Stacked, Sliced, Equal]),
        (("fa", "fc"), None),
        (("fa", "fr"), None),
        (("aa", "ab"), [Sliced, Shared, Equal]),
        (("aa", "bc"), None),
        (("random", "random"), [Shared]),
        (("half", "third"), None),
    ],
)
def test_roles(root: tuple[str, ...], roles: list[type] | None):
    found = BranchMatcher(NODES.__getitem__).match(root)
    assert (None if found is None else [type(r) for r in found.roles.values()]) == roles


def test_the_first_difference_is_named():
    matcher = BranchMatcher(NODES.__getitem__)
    assert matcher.difference("fa", "aa") == ("op mul instead of add", [])
    assert matcher.difference("half", "third") == ("constant 0.3 instead of 0.5", [])
    assert matcher.difference("fa", "fr") == ("size 4 instead of 3", ["fa", "a", "p"])
