"""Pieces of a long cat are written where it lies; right whatever a piece is and however it lies."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tofuse
from tests.support.eager import assert_as_eager
from tofuse.cost.nest import Machine
from tofuse.fusion.partition.partitioner import partition
from tofuse.fusion.region_liveness import peak_bytes, unfused_peak
from tofuse.ir.graph.parse import parse_graph
from tofuse.ir.region import is_eliminated_concat
from tofuse.ir.region.parse import parse_partition
from tofuse.ir.region.print import show_partition

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def averages(x, dim=0):
    """A running mean along `dim`, all of whose steps are wanted."""
    h, steps = torch.zeros_like(x.select(dim, 0)), []
    for t in range(x.shape[dim]):
        h = 0.75 * h + 0.25 * x.select(dim, t)
        steps.append(h)
    return torch.stack(steps, dim)


def along_rows(x):
    return averages(x, 1)


def along_last(x):
    return averages(x, 2)


def recurrent(x):
    n = x.shape[-1]
    w = torch.linspace(-1 / n, 1 / n, n * n, dtype=x.dtype).view(n, n)
    h, steps = x[0], []
    for t in range(8):
        h = torch.tanh(x[t % len(x)] + h @ w)
        steps.append(h)
    return torch.stack(steps)


def recurrent_by_rows(x):
    return recurrent(x.transpose(0, 1)).transpose(0, 1).contiguous() + recurrent(x).sum()


def features(x):
    return torch.cat([x, x * 2, x.sin(), x, x.exp(), x.T.contiguous().T, x.abs(), -x, x.cos()], -1)


def features_by_rows(x):
    return torch.cat([x[1:], x * 2, x.sin(), x[:1].exp(), x.cumsum(0), x.abs(), -x, x.cos()], 0)


def shared(x):
    a = [x * k for k in range(8)]
    return torch.cat(a, 0) + 1, torch.cat(a[::-1], 1) * 2, torch.cat([a[3]] * 7, 0), a[2], a[5].T


def moved(x):
    steps = [(x * k).sin().T for k in range(8)]
    y = torch.stack([s.unsqueeze(1) for s in steps], 1)
    return y, y.sum(1), torch.cat([s.reshape(-1) for s in steps]) + steps[3].reshape(-1).mean()


def nested(x):
    inner = [torch.cat([x * k + j for k in range(7)], -1) for j in range(7)]
    return torch.cat(inner, 0), inner[2].sum(0)


def normed(x):
    y = torch.cat([x.roll(k, 0) * k for k in range(1, 9)], -1)
    return F.layer_norm(y, y.shape[-1:]), y.amax(0)


def scalars(x):
    return torch.stack([(x * k).mean() for k in range(9)]), torch.stack([x.amax(1)] * 8, -1)


ROWS = [averages, features, features_by_rows, shared, moved, nested, normed, scalars, recurrent]


@pytest.mark.broad(5)
@pytest.mark.parametrize("shape", [(7, 33), (16, 16), (1, 5), (9, 1)])
@pytest.mark.parametrize("program", ROWS)
def test_rows(program, shape):
    if program is recurrent:
        shape = (shape[0], 3, shape[1])
    if program is shared:
        shape = (shape[0], shape[0])
    assert_as_eager(program, torch.randn(shape, requires_grad=True), rtol=1e-4, atol=1e-4)


@pytest.mark.broad(5)
@pytest.mark.parametrize("program", [averages, along_rows, along_last, recurrent_by_rows])
@pytest.mark.parametrize("shape", [(8, 9, 10), (2, 17, 3), (20, 8, 48)])
def test_blocks(program, shape):
    if program is recurrent_by_rows:
        shape = (8, 8, shape[2])
    x = torch.randn(shape, requires_grad=True)
    assert_as_eager(program, x, rtol=1e-3, atol=1e-4)
    turned = torch.randn(shape[::-1]).permute(2, 1, 0).requires_grad_()
    if program is not recurrent_by_rows:
        assert_as_eager(program, turned, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_types(dtype):
    def f(x):
        return torch.cat(
            [x, x & x if dtype is torch.bool else x + 1, *(x != x.flip(k % 2) for k in range(6))]
        )

    x = torch.randn(7, 65).to(dtype)
    y = tofuse.compile(f)(x)
    assert y.dtype == f(x).dtype
    torch.testing.assert_close(y, f(x))


@pytest.mark.broad(5)
@pytest.mark.parametrize("options", [{"executors": ("aten",)}, {"verify": True}, {"dynamic": True}])
@pytest.mark.parametrize("program", [along_rows, features, recurrent])
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


def test_nothing_runs_for_the_cat():
    x = torch.randn(12, 12, 32)
    for program in (averages, along_rows):
        torch._dynamo.reset()
        report = tofuse.explain(program)(x)
        assert not report.library_calls
        assert len(report.kernels) == 1
        assert report.bytes_after <= 2 * x.nbytes


def test_what_the_caller_gets_is_apart():
    def f(x):
        steps = [x * k for k in range(8)]
        return torch.cat(steps), steps[4]

    whole, piece = tofuse.compile(f)(torch.ones(3, 32))
    piece.zero_()
    assert float(whole[12:15].sum()) == 4 * 96


PIECES = [f"p{k} = mul(x, {k}.0) : f32[100,32]" for k in range(8)]
LONG = parse_graph(
    "\n".join(
        [
            "graph(x: f32[100,32]) {",
            *PIECES,
            f"y = cat({', '.join(f'p{k}' for k in range(8))}, dim=1) : f32[100,256]",
            "z = sum(y, dims=(1,), dtype=f32) : f32[100]",
            "return z",
            "}",
        ]
    )
)


def test_the_cat_s_memory_counts_once():
    part = partition(LONG, lambda kernel: None, Machine())
    (cat,) = [op for op in part.graph.ops if is_eliminated_concat(op)]
    homes = part.concat_slices
    assert [homes[p].offset for p in cat.inputs] == [32 * k for k in range(8)]
    assert {homes[p].strides for p in cat.inputs} == {(256, 1)}
    assert peak_bytes(part) == 4 * (8 * 3200 + 100)
    assert unfused_peak(LONG) == 4 * 16 * 3200
    again = parse_partition(show_partition(part))
    assert show_partition(again) == show_partition(part)
    assert {v.name: p.offset for v, p in again.concat_slices.items()} == {
        f"p{k}": 32 * k for k in range(8)
    }


def heavy(x):
    return torch.cat([x.sin(), x.cos(), (2 * x).sin(), (2 * x).cos(), x], -1)


def reduced(x):
    return torch.cat([x.softmax(-1), F.layer_norm(x, x.shape[-1:]), x * 2], -1).tanh()


def summed(x):
    y = torch.cat([x.softmax(-1), x.softmax(0)], -1)
    return y.sum(-1), y.softmax(0)[:, ::2]


@pytest.mark.broad(4)
@pytest.mark.parametrize("shape", [(7, 33), (64, 64), (1, 20), (5, 16)])
@pytest.mark.parametrize("program", [heavy, reduced, summed])
def test_short_cats_of_stored_pieces(program, shape):
    assert_as_eager(program, torch.randn(shape, requires_grad=True), rtol=1e-4, atol=1e-5)


def test_pieces_that_kernels_store_are_stored_once():
    x = torch.randn(64, 64)
    for program, kernels in ((heavy, 1), (reduced, 2)):
        torch._dynamo.reset()
        assert len(tofuse.explain(program)(x).kernels) == kernels


def test_room_is_not_held_before_it_is_needed():
    """The first piece is there long before the others, when more is alive than ever after."""

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
def test_many_pieces_of_others(count, channels_last):
    """As those of a dense net: a kernel reads up to twelve where they are."""

    def f(scale, *pieces):
        return (torch.cat(pieces, 1) * scale[:, None, None]).relu()

    layout = torch.channels_last if channels_last else torch.contiguous_format
    pieces = [torch.randn(2, 3 + k % 4, 5, 4).to(memory_format=layout) for k in range(count)]
    scale = torch.randn(sum(p.shape[1] for p in pieces))
    for p in (scale, *pieces):
        p.requires_grad_()
    assert_as_eager(f, scale, *pieces)
    with torch.no_grad():
        assert bool(tofuse.explain(f)(scale, *pieces).library_calls) == (count > 12)


def test_what_a_library_call_may_view_is_apart():
    def f(x):
        steps = [torch.tanh(x * k) for k in range(8)]
        return torch.cat(steps), steps[3].unfold(0, 2, 1), torch.diagonal(steps[5])

    x = torch.randn(4, 16)
    whole, windows, diagonal = tofuse.compile(f)(x)
    want = f(x)[0]
    windows.zero_()
    diagonal.zero_()
    torch.testing.assert_close(whole, want)


def legendre(x):
    """Polynomials by recurrence: each is read by the next two, and one is returned."""
    p = [torch.ones_like(x), x]
    for n in range(1, 12):
        p.append(((2 * n + 1) * x * p[-1] - n * p[-2]) / (n + 1))
    return torch.stack(p, -1), p[3]


def levels(x):
    """Layers of a net, all kept, by rows and side by side."""
    w = torch.linspace(-1, 1, 2 * x.shape[1] * x.shape[1], dtype=x.dtype).view(-1, x.shape[1])
    found = []
    for k in range(9):
        x = torch.sigmoid(torch.cat([x, x.roll(k, 0)], -1) @ w)
        found.append(x)
    return torch.stack(found, 1).mean(-1), torch.cat(found, -1)


@pytest.mark.broad(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("program", [legendre, levels])
def test_programs_of_other_kinds(program, dtype):
    static = {"capture": "trace"}
    for rows in (1, 7, 64):
        plain = torch.randn(rows, 5, dtype=dtype, requires_grad=True)
        apart = torch.randn(17, rows, dtype=dtype)[::2].T.requires_grad_()
        assert_as_eager(program, plain, rtol=2e-4, atol=2e-4, calls=1, options=static)
        assert_as_eager(program, apart, rtol=2e-4, atol=2e-4, calls=1, options=static)
