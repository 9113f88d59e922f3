"""Static, dynamic, empty and huge shapes, and recompilation."""

from inspect import signature

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse
from tests.support.eager import assert_as_eager, assert_same, copies, outcome
from tofuse.config import make_config
from tofuse.driver.compile import compile_reporting

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def count_compilations(fn, inputs, **options):
    """Return how many graphs were compiled over all inputs; check every result against eager."""
    compiled, report = compile_reporting(fn, make_config({"strict": True, **options}))
    for x in inputs:
        got, expected = outcome(compiled, copies((x,)), {}), outcome(fn, copies((x,)), {})
        assert_same(got, expected, rtol=1e-4, atol=1e-4)
    assert not [n for r in report.graphs for n in r.notes if not n.startswith("sizes are symbolic")]
    return len(report.graphs)


def batches(sizes, grad=False):
    return [torch.randn(b, 16, requires_grad=grad) for b in sizes]


BATCH_SIZES = (4, 6, 10, 12, 3, 8, 16, 20, 32, 5)
NET = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
PROGRAMS = {
    "pointwise": lambda x: (x * 2 + 1).relu(),
    "softmax": lambda x: x.softmax(-1),
    "outer softmax": lambda x: x.softmax(0),
    "layer norm": lambda x: F.layer_norm(x, (16,)),
    "mean": lambda x: x.mean(),
    "shared": lambda x: (x.sum(0), x.cos()),
    "cat": lambda x: torch.cat([x, x * 2]).sin(),
    "reshape": lambda x: (x * 2).view(-1, 4).cos(),
    "shape": lambda x: x * x.shape[0],
    "attention": lambda x: ((x @ x.t()) / x.shape[0] ** 0.5).softmax(-1) @ x,
    "cross entropy": lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long)),
    "pad": lambda x: F.pad(x, (1, 1, 2, 0)) + 1,
    "outer": lambda x: x[:, None, :] * x[None],
    "index": lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)],
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True])
def test_dynamic_program_is_compiled_once(name, grad):
    """TensorRT-LLM 6142"""
    count = count_compilations(PROGRAMS[name], batches(BATCH_SIZES, grad), dynamic=True)
    assert count == 1 + grad  # forward and backward


def test_dynamic_network_is_compiled_once():
    """TensorRT-LLM 6142"""
    with torch.no_grad():
        assert count_compilations(lambda x: NET(x), batches(BATCH_SIZES), dynamic=True) == 1


def test_sizes_become_dynamic_when_they_change():
    """pytorch 121369: two compilations with the default options."""
    assert count_compilations(PROGRAMS["softmax"], batches(BATCH_SIZES)) == 2


def test_more_than_eight_static_shapes_are_compiled():
    """pytorch 121369: from the ninth shape on, eager ran the program, as with torch 2.11."""
    sizes = range(2, 22)
    has_limit = "recompile_limit" in signature(torch.compile).parameters
    count = count_compilations(PROGRAMS["pointwise"], batches(sizes), dynamic=False)
    assert count == (len(sizes) if has_limit else 8)


def test_kernels_of_other_shapes_are_not_reused():
    """pytorch 86020"""
    shapes = [(4, 8), (8, 4), (32,), (2, 16), (4, 8, 1), (1, 4, 8), (4, 8), (5, 7), (32, 1)]
    for dynamic in (False, None, True):
        torch._dynamo.reset()
        inputs = [torch.randn(s) for s in shapes]
        count_compilations(lambda x: (x * 2).softmax(-1) + x.sum(0), inputs, dynamic=dynamic)


def test_kernels_of_other_strides_or_dtypes_are_not_reused():
    """pytorch 86020"""
    x = torch.randn(8, 8)
    inputs = [x, x.t(), x[::2], x.double(), x.bfloat16(), x.long(), x.expand(2, 8, 8)[0], x]
    for dynamic in (False, None, True):
        torch._dynamo.reset()
        count_compilations(lambda x: x * 2 + 1, inputs, dynamic=dynamic)


EDGE_SHAPES = ((0,), (0, 3), (3, 0), (2, 0, 4), (), (1,), (1, 1), (1, 3), (3, 1))
OPS = {
    "pointwise": lambda x: (x * 2 + 1).relu(),
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(-1),
    "product": lambda x: x.prod(),
    "softmax": lambda x: x.softmax(-1),
    "variance": lambda x: x.var(-1, correction=0),
    "maximum": lambda x: x.amax(-1),
    "whole maximum": lambda x: x.amax(),
    "argmax": lambda x: x.argmax(),
    "max with index": lambda x: x.max(-1),
    "norm": lambda x: x.norm(),
    "logsumexp": lambda x: x.logsumexp(-1),
    "any": lambda x: ((x > 0).any(), (x > 0).all()),
    "reshape": lambda x: x.reshape(-1) + 1,
    "broadcast": lambda x: x + torch.ones(4, 1, 1, 1),
    "keepdim": lambda x: x.sum(-1, keepdim=True) * x,
    "scan": lambda x: x.cumsum(-1) * 2,
    "flip": lambda x: x.flip(-1) * 2,
    "cat": lambda x: torch.cat([x.reshape(-1), x.reshape(-1) * 2]),
}


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")  # eager warns, too
@pytest.mark.parametrize("name", OPS)
def test_empty_scalar_and_unit_tensors(name):
    """OpInfo: as eager, including the error."""
    for shape in EDGE_SHAPES:
        for grad in (False, True):
            torch._dynamo.reset()
            x = torch.randn(shape, requires_grad=grad)
            try:
                OPS[name](x)
            except (RuntimeError, IndexError):
                with pytest.raises((RuntimeError, IndexError)):
                    tofuse.compile(OPS[name])(x)
            else:
                assert_as_eager(OPS[name], x, calls=1)


EMPTY_OPS = {
    "mean square": lambda x: F.mse_loss(x, x.detach() * 2),
    "huber": lambda x: F.huber_loss(x, x.detach() * 2),
    "smooth": lambda x: F.smooth_l1_loss(x, x.detach() * 2),
    "rows": lambda x: F.embedding(torch.zeros(0, dtype=torch.long), x),
}


@pytest.mark.parametrize("name", EMPTY_OPS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_gradients_of_empty_losses_and_embeddings(name, shape):
    x = torch.randn(shape, requires_grad=True)
    assert_as_eager(EMPTY_OPS[name], x, calls=1, options={"strict": True})


def test_empty_group_norm_compiles_in_finite_time():
    """An axis without elements splits into any number of axes, without end."""
    x = torch.randn(0, 3, requires_grad=True)
    assert_as_eager(lambda x: F.group_norm(x, 1), x, calls=1, options={"strict": True})


def test_large_tensors_have_64_bit_addresses():
    """Common: untouched pages take no memory, so the test can use real addresses."""
    far = 2**31
    memory = torch.empty(far + 64, dtype=torch.int8)
    rows = memory.as_strided((2, 8), (far, 1))
    rows.copy_(torch.arange(16, dtype=torch.int8).view(2, 8))
    for options in ({"dynamic": False}, {"dynamic": True}):
        torch._dynamo.reset()
        compiled = tofuse.compile(lambda x: x.int() * 2 + 1, **options)
        expected = torch.arange(16, dtype=torch.int32).view(2, 8) * 2 + 1
        assert torch.equal(compiled(rows), expected)
        assert torch.equal(compiled(rows.t()), expected.t())
    index = torch.tensor([0, far, far + 15])
    memory[index] = torch.tensor([3, 4, 5], dtype=torch.int8)
    taken = tofuse.compile(lambda x, i: x[i].int() + 1)(memory, index)
    assert taken.tolist() == [4, 5, 6]


def test_derived_sizes_do_not_exceed_memory_limit():
    """A quarter of the channels had an independent size hint, so nothing was fused."""

    def f(x, w, b):
        return F.silu(F.group_norm(x, 4, w, b))

    args = [t.requires_grad_() for t in (torch.randn(2, 16, 8, 8), *torch.randn(2, 16))]
    report = tofuse.explain(f, dynamic=True)(*args)
    assert not [v for v in report.verdicts if "more memory" in v.rule]
    assert len(report.backward.kernels) < 8
    assert_as_eager(f, *args, rtol=1e-4, atol=1e-4, options={"dynamic": True})


@pytest.mark.parametrize(
    ("shifts", "dims"), [((1, -2), (0, 1)), ((0,), (1,)), ((3,), ()), ((9,), (0,))]
)
def test_roll_is_fused_if_size_exceeds_shift(shifts, dims):
    def f(x):
        return (x * 2).roll(shifts, dims) + x

    report = tofuse.explain(f, dynamic=True)(torch.randn(5, 7))
    assert ("aten.roll.default" in [c.name for c in report.library_calls]) == (9 in shifts)
    for rows in (5, 4, 3, 20):
        x = torch.randn(rows, 4 * rows, requires_grad=True)
        assert_as_eager(f, x, options={"dynamic": True, "strict": True})


def test_gathered_rows_in_a_concat():
    """The index is out of range where another operand is read."""

    def f(x, at, table):
        return torch.cat([x, table[at + torch.arange(0, 30, 10)]], 1) * 2

    args = (torch.randn(9, 8, 33), torch.randint(0, 10, (9, 3)), torch.randn(30, 33))
    assert_as_eager(f, *args, options={"dynamic": True, "strict": True})
    with pytest.raises(IndexError):
        tofuse.compile(f, dynamic=True)(args[0], args[1] + 10, args[2])


def test_matvec_of_sizes_that_guards_make_equal():
    def f(h, x, w):
        n = h.shape[1]
        both = [h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1)]
        return (torch.cat([*both, x[:, :, None] - x[:, None]], -1) @ w).sum(2)

    for n in (6, 7):
        shapes = ((2, n, 4), (2, n, 3), (11, 1))
        args = [torch.randn(s, requires_grad=True) for s in shapes]
        assert_as_eager(f, *args, rtol=1e-4, atol=1e-4, options={"dynamic": True, "strict": True})


SYMBOLIC_INDICES = {  # relative to the end or the middle
    "last": lambda x: (x * 2)[:, -1].sin(),
    "last three": lambda x: (x * 2)[:, -3:].sin(),
    "halves": lambda x: torch.cat([-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], -1) + 1,
    "chunks": lambda x: torch.cat([c.sin() for c in (x * 2).chunk(2, -1)][::-1], -1),
    "split": lambda x: [c.sin() for c in (x * 2).split([2, x.shape[1] - 2], 1)],
    "flipped": lambda x: (x * 2).flip(1, 0).cos(),
    "narrow": lambda x: (x * 2).narrow(1, x.shape[1] - 2, 2).exp(),
    "interior": lambda x: (x * 2)[1:-1, 2:-2].sin(),
    "strided": lambda x: (x * 2)[x.shape[0] // 3 :: 2].sin(),
    "middle": lambda x: (x * 2)[x.shape[0] // 2].exp(),
    "corner": lambda x: x[-2:, -1:] * x[:2, :1],
    "padded and sliced": lambda x: F.pad(x.sin(), (2, 3))[..., 2:-3] + x,
    "far before the first": lambda x: (x * 2)[-9:].sin(),
    "both ends": lambda x: x[x.shape[0] - 2 :].sum(0) + x[: x.shape[0] - 2].sum(0),
}


@pytest.mark.parametrize("name", SYMBOLIC_INDICES)
def test_symbolic_indices(name):
    f = SYMBOLIC_INDICES[name]
    compiled = tofuse.compile(f, dynamic=True, strict=True, specialize=False)
    for shape in ((6, 8), (10, 12), (7, 9), (23, 16), (5, 6)):
        x = (torch.randn(shape, requires_grad=True),)
        assert_same(outcome(compiled, copies(x), {}), outcome(f, copies(x), {}))


@pytest.mark.parametrize("name", ["last", "last three", "middle", "halves", "interior", "narrow"])
def test_symbolic_indices_are_fused(name):
    report = tofuse.explain(SYMBOLIC_INDICES[name], dynamic=True)(
        torch.randn(6, 8, requires_grad=True)
    )
    assert len(report.kernels) == 2 and not report.library_calls


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)])
def test_lu_with_sizes_that_guards_make_equal(shape):
    """The backward concatenates min(m, n) and n columns, with a guard that n < m."""

    def f(x):
        return torch.lu_unpack(*torch.linalg.lu_factor(x))[1:]

    compiled = tofuse.compile(f, strict=True, dynamic=True)
    for k in range(2):
        x = torch.randn(shape[0] + k, shape[1] + k, requires_grad=True)
        got, wanted = (torch.autograd.grad([t.sum() for t in g(x)], x) for g in (compiled, f))
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("m, k", [(3, 0), (0, 3), (0, 0), (3, 2)])
def test_value_added_to_empty_sum(m, k):
    """It is invariant in the loops of the sum, which may have no iterations."""

    def program(a, b, c):
        return (a[:, :, :, None] * b[None]).sum((1, 2)) + c.exp().sin().tanh()

    a, b, c = torch.randn(6, m, k), torch.randn(m, k, 40), torch.randn(6, 40)
    assert_as_eager(program, a, b, c.requires_grad_())


def test_a_cache_that_grew_by_one_is_read_as_merged_rows_in_one_kernel():
    def program(cache, new):
        keys = torch.cat([cache, new], 1).cos()
        rows = keys.reshape(2 * keys.shape[1], 3)
        return rows.softmax(1), keys.sum(0)

    report = tofuse.explain(program, dynamic=True)(torch.randn(2, 5, 3), torch.randn(2, 1, 3))
    assert not [v for v in report.verdicts if "do not divide" in str(v)]
    compiled = tofuse.compile(program, dynamic=True)
    for count in (5, 7, 1, 0):
        args = torch.randn(2, count, 3), torch.randn(2, 1, 3)
        assert_same(outcome(compiled, args, {}), outcome(program, args, {}))
