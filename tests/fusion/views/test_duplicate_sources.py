"""Ranges and filled tensors with a copy for each reader that must not share them."""

import pytest
import torch

import tofuse
from benchmarks.allocations import allocations
from tests.support.vector_graphs import make_graph
from tofuse.analysis.alias import AliasAnalysis
from tofuse.fusion.views.duplicate_sources import duplicate_sources

FILLS = make_graph(
    "zero = full(value=0.0, shape=(500, 400)) : f32[500, 400]",
    *(
        f"{name} = opaque(zero, i, {read}, target='aten.index_add.default', args='$0, 0, $1, $2')"
        " : f32[500, 400]"
        for name, read in (("a", "x"), ("b", "y"))
    ),
    "c = add(zero, a) : f32[500, 400]",
    outputs="b, c",
    inputs="i: i64[3], x: f32[3, 400], y: f32[3, 400]",
)


def test_each_call_that_adds_to_a_filled_tensor_gets_its_own():
    result = duplicate_sources(FILLS, AliasAnalysis(FILLS).memrefs)
    first, second = (op for op in result.ops if op.kind == "opaque")
    assert first.inputs[0] is not second.inputs[0]
    assert [op.kind for op in result.ops].count("full") == 2


INDICES = [torch.randint(0, 1023, (1024,)) for _ in range(4)]
SELECTIONS = {
    "index_select": lambda x, i: x.index_select(1, i),
    "index": lambda x, i: x[:, i],
    "gather": lambda x, i: x.gather(1, i.expand(2048, 1024)),
    "index_put": lambda x, i: torch.index_put(x, (i,), x[0], accumulate=True),
}


@pytest.mark.parametrize("selection", SELECTIONS)
def test_gradients_of_several_selections_hold_no_more_than_in_eager(selection):
    select = SELECTIONS[selection]

    def program(x):
        return sum(select(x * k, i).exp().sum() for k, i in enumerate(INDICES, 1))

    x = torch.randn(2048, 1023, requires_grad=True)
    compiled = tofuse.compile(program, pool_bytes=0)
    peaks = []
    for run in (program, compiled):

        def step(run=run):
            return torch.autograd.grad(run(x), [x])

        for _ in range(3):
            step()
        peaks.append(allocations(step).peak)
    torch.testing.assert_close(*(torch.autograd.grad(f(x), [x]) for f in (program, compiled)))
    assert peaks[1] <= peaks[0]
