"""Operands of long concats are written into the concat, with eager's results for all kinds."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse
from tests.support.eager import assert_as_eager
from tests.support.evaluators import rejecting
from tofuse.analysis.alias import is_eliminated_concat
from tofuse.driver.pipeline import partition
from tofuse.fusion.region_liveness import peak_bytes, unfused_peak
from tofuse.graph_partition import show_partition
from tofuse.graph_partition.parse import parse_partition
from tofuse.ir.parse_graph import parse_graph

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def averages(x, dim=0):
    """A running mean along `dim` that returns all steps."""
    h, steps = torch.zeros_like(x.select(dim, 0)), []
    for t in range(x.shape[dim]):
        h = 0.75 * h + 0.25 * x.select(dim, t)
        steps.append(h)
    return torch.stack(steps, dim)


def averages_along_dim1(x):
    return averages(x, 1)


def averages_along_dim2(x):
    return averages(x, 2)


def recurrent(x):
    n = x.shape[-1]
    w = torch.linspace(-1 / n, 1 / n, n * n, dtype=x.dtype).view(n, n)
    h, steps = x[0], []
    for t in range(8):
        h = torch.tanh(x[t % len(x)] + h @ w)
        steps.append(h)
    return torch.stack(steps)


def recurrent_along_dim1(x):
    return recurrent(x.transpose(0, 1)).transpose(0, 1).contiguous() + recurrent(x).sum()


def features(x):
    return torch.cat([x, x * 2, x.sin(), x, x.exp(), x.T.contiguous().T, x.abs(), -x, x.cos()], -1)


def features_along_dim0(x):
    return torch.cat([x[1:], x * 2, x.sin(), x[:1].exp(), x.cumsum(0), x.abs(), -x, x.cos()], 0)


def shared_operands(x):
    a = [x * k for k in range(8)]
    return torch.cat(a, 0) + 1, torch.cat(a[::-1], 1) * 2, torch.cat([a[3]] * 7, 0), a[2], a[5].T


def viewed_operands(x):
    steps = [(x * k).sin().T for k in range(8)]
    y = torch.stack([s.unsqueeze(1) for s in steps], 1)
    return y, y.sum(1), torch.cat([s.reshape(-1) for s in steps]) + steps[3].reshape(-1).mean()


def nested_concats(x):
    inner = [torch.cat([x * k + j for k in range(7)], -1) for j in range(7)]
    return torch.cat(inner, 0), inner[2].sum(0)


def normed(x):
    y = torch.cat([x.roll(k, 0) * k for k in range(1, 9)], -1)
    return F.layer_norm(y, y.shape[-1:]), y.amax(0)


def scalars(x):
    return torch.stack([(x * k).mean() for k in range(9)]), torch.stack([x.amax(1)] * 8, -1)


MATRIX_PROGRAMS = [
    averages,
    features,
    features_along_dim0,
    shared_operands,
    viewed_operands,
    nested_concats,
    normed,
    scalars,
    recurrent,
]


@pytest.mark.parametrize("shape", [(7, 33), (16, 16), (1, 5), (9, 1)])
@pytest.mark.parametrize("program", MATRIX_PROGRAMS)
def test_matrices(program, shape):
    if program is recurrent:
        shape = (shape[0], 3, shape[1])
    if program is shared_operands:
        shape = (shape[0], shape[0])
    assert_as_eager(program, torch.randn(shape, requires_grad=True), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "program", [averages, averages_along_dim1, averages_along_dim2, recurrent_along_dim1]
)
@pytest.mark.parametrize("shape", [(8, 9, 10), (2, 17, 3), (20, 8, 48)])
def test_volumes(program, shape):
    if program is recurrent_along_dim1:
        shape = (8, 8, shape[2])
    x = torch.randn(shape, requires_grad=True)
    assert_as_eager(program, x, rtol=1e-3, atol=1e-4)
    permuted = torch.randn(shape[::-1]).permute(2, 1, 0).requires_grad_()
    if program is not recurrent_along_dim1:
        assert_as_eager(program, permuted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_dtypes(dtype):
    def f(x):
        return torch.cat(
            [x, x & x if dtype is torch.bool else x + 1, *(x != x.flip(k % 2) for k in range(6))]
        )

    x = torch.randn(7, 65).to(dtype)
    y = tofuse.compile(f)(x)
    assert y.dtype == f(x).dtype
    torch.testing.assert_close(y, f(x))


@pytest.mark.parametrize("options", [{"executors": ("aten",)}, {"verify": True}, {"dynamic": True}])
@pytest.mark.parametrize("program", [averages_along_dim1, features, recurrent])
def test_options(program, options):
    fast = tofuse.compile(program, **options)
    for rows in (8, 11):
        x = torch.randn(rows, 8, 8) if program is recurrent else torch.randn(rows, 13, 8)[:, :, :7]
        x = x[:, 0] if program is features else x
        torch.testing.assert_close(fast(x), program(x), rtol=1e-4, atol=1e-5)


def test_images():
    class Pyramid(nn.Module):
        def forward(self, x):
            sizes = [F.interpolate(x * k, scale_factor=1.0) for k in range(4)]
            return torch.cat([*sizes, x.relu(), x.sigmoid(), x.tanh(), x * x], 1)

    x = torch.randn(2, 5, 6, 7).to(memory_format=torch.channels_last)
    assert_as_eager(Pyramid(), x.requires_grad_(), rtol=1e-4, atol=1e-5)
    assert_as_eager(Pyramid(), torch.randn(2, 5, 6, 7, requires_grad=True), rtol=1e-4, atol=1e-5)


def test_an_eliminated_concat_runs_nothing():
    x = torch.randn(12, 12, 32)
    for program in (averages, averages_along_dim1):
        torch._dynamo.reset()
        report = tofuse.explain(program)(x)
        assert not report.library_calls
        assert len(report.kernels) == 1
        assert report.bytes_after <= 2 * x.nbytes


def test_a_returned_operand_has_memory_of_its_own():
    def f(x):
        steps = [x * k for k in range(8)]
        return torch.cat(steps), steps[4]

    concat, operand = tofuse.compile(f)(torch.ones(3, 32))
    operand.zero_()
    assert float(concat[12:15].sum()) == 4 * 96


OPERANDS = [f"p{k} = mul(x, {k}.0) : f32[100,32]" for k in range(8)]
LONG_CONCAT = parse_graph(
    "\n".join(
        [
            "graph(x: f32[100,32]) {",
            *OPERANDS,
            f"y = cat({', '.join(f'p{k}' for k in range(8))}, dim=1) : f32[100,256]",
            "z = sum(y, dims=(1,), dtype=f32) : f32[100]",
            "return z",
            "}",
        ]
    )
)


def test_memory_of_an_eliminated_concat_counts_once():
    part = partition(LONG_CONCAT, rejecting())
    (cat,) = [op for op in part.graph.ops if is_eliminated_concat(op)]
    slices = part.aliases.slices
    assert [slices[p].offset for p in cat.inputs] == [32 * k for k in range(8)]
    assert {slices[p].strides for p in cat.inputs} == {(256, 1)}
    assert peak_bytes(part) == 4 * (8 * 3200 + 100)
    assert unfused_peak(LONG_CONCAT) == 4 * 16 * 3200
    parsed = parse_partition(show_partition(part))
    assert show_partition(parsed) == show_partition(part)
    assert {v.name: p.offset for v, p in parsed.aliases.slices.items()} == {
        f"p{k}": 32 * k for k in range(8)
    }


def expensive_operands(x):
    return torch.cat([x.sin(), x.cos(), (2 * x).sin(), (2 * x).cos(), x], -1)


def normalized_operands(x):
    return torch.cat([x.softmax(-1), F.layer_norm(x, x.shape[-1:]), x * 2], -1).tanh()


def softmax_operands(x):
    y = torch.cat([x.softmax(-1), x.softmax(0)], -1)
    return y.sum(-1), y.softmax(0)[:, ::2]


@pytest.mark.broad(4)
@pytest.mark.parametrize("shape", [(7, 33), (64, 64), (1, 20), (5, 16)])
@pytest.mark.parametrize("program", [expensive_operands, normalized_operands, softmax_operands])
def test_short_concats_of_stored_operands(program, shape):
    assert_as_eager(program, torch.randn(shape, requires_grad=True), rtol=1e-4, atol=1e-5)


def test_stored_operands_are_stored_once():
    x = torch.randn(64, 64)
    for program, kernels in ((expensive_operands, 1), (normalized_operands, 2)):
        torch._dynamo.reset()
        assert len(tofuse.explain(program)(x).kernels) == kernels


def test_concat_memory_is_not_held_too_early():
    """The first operand is computed long before the others, when memory use is highest."""

    def f(x):
        first = (x * 2).sin()
        wide = torch.cat([x] * 12).cumsum(0).cumsum(1)
        rest = [(wide[k * 64 : k * 64 + 64] * k).cumsum(0).cos() for k in range(7)]
        return torch.cat([first, *rest])

    x = torch.randn(64, 128)
    report = tofuse.explain(f)(x)
    assert report.peak_bytes <= report.eager_peak_bytes + 4096
    torch.testing.assert_close(tofuse.compile(f)(x), f(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("count", [7, 12, 13])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_kernel_reads_up_to_twelve_arguments_in_place(count, channels_last):
    """As in a DenseNet."""

    def f(scale, *operands):
        return (torch.cat(operands, 1) * scale[:, None, None]).relu()

    layout = torch.channels_last if channels_last else torch.contiguous_format
    operands = [torch.randn(2, 3 + k % 4, 5, 4).to(memory_format=layout) for k in range(count)]
    scale = torch.randn(sum(p.shape[1] for p in operands))
    for p in (scale, *operands):
        p.requires_grad_()
    assert_as_eager(f, scale, *operands)
    with torch.no_grad():
        assert bool(tofuse.explain(f)(scale, *operands).library_calls) == (count > 12)


def test_an_operand_that_a_library_call_may_view_has_memory_of_its_own():
    def f(x):
        steps = [torch.tanh(x * k) for k in range(8)]
        return torch.cat(steps), steps[3].unfold(0, 2, 1), torch.diagonal(steps[5])

    x = torch.randn(4, 16)
    concat, windows, diagonal = tofuse.compile(f)(x)
    want = f(x)[0]
    windows.zero_()
    diagonal.zero_()
    torch.testing.assert_close(concat, want)


def legendre(x):
    """Legendre polynomials: each is read by the next two, and one is returned."""
    p = [torch.ones_like(x), x]
    for n in range(1, 12):
        p.append(((2 * n + 1) * x * p[-1] - n * p[-2]) / (n + 1))
    return torch.stack(p, -1), p[3]


def layer_outputs(x):
    """All layers of a network, stacked and concatenated."""
    w = torch.linspace(-1, 1, 2 * x.shape[1] * x.shape[1], dtype=x.dtype).view(-1, x.shape[1])
    found = []
    for k in range(9):
        x = torch.sigmoid(torch.cat([x, x.roll(k, 0)], -1) @ w)
        found.append(x)
    return torch.stack(found, 1).mean(-1), torch.cat(found, -1)


@pytest.mark.broad(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("program", [legendre, layer_outputs])
def test_recurrences_and_layers(program, dtype):
    static = {"capture": "trace"}
    for rows in (1, 7, 64):
        contiguous = torch.randn(rows, 5, dtype=dtype, requires_grad=True)
        strided = torch.randn(17, rows, dtype=dtype)[::2].T.requires_grad_()
        assert_as_eager(program, contiguous, rtol=2e-4, atol=2e-4, calls=1, options=static)
        assert_as_eager(program, strided, rtol=2e-4, atol=2e-4, calls=1, options=static)
