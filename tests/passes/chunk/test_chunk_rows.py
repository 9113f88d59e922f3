"""Large products in chunks of rows: gradients as in eager, and no whole product in memory."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tofuse.capture.joint.loss_gradients import loss_gradients
from tofuse.cost.chunks import ChunkLimits
from tofuse.driver import pipeline
from tofuse.fusion.region_liveness import unfused_peak
from tofuse.ir.graph import Graph
from tofuse.ir.parse_graph import parse_graph
from tofuse.ops.check_graph import verify_graph
from tofuse.ops.reference import run_graph
from tofuse.passes.chunk.chunk_rows import chunk_rows
from tofuse.passes.dead_code import dead_code

pytestmark = [
    pytest.mark.usefixtures("fresh_dynamo"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

CLASSES, WIDTH = 300, 6
SMALL = ChunkLimits(product_bytes=1 << 14, chunk_bytes=1 << 13, chunk_rows=4)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Chunk small products, too; return the graphs that were changed."""
    changed: list[Graph] = []

    def chunk(graph: Graph) -> Graph:
        new = chunk_rows(graph, SMALL)
        if new is not graph:
            changed.append(dead_code(new))
        return new

    joint = partial(loss_gradients, limits=SMALL)
    for name, old, new in (
        ("JOINT_PASSES", loss_gradients, joint),
        ("LAST_GRAPH_PASSES", chunk_rows, chunk),
    ):
        passes = getattr(pipeline, name)
        monkeypatch.setattr(pipeline, name, tuple(new if p is old else p for p in passes))
    return changed


def logits(x, w, b=None):
    return F.linear(x, w, b).view(-1, CLASSES)


def plain(x, w, b, t):
    return F.cross_entropy(logits(x, w), t.view(-1))


def ignored_and_smoothed(x, w, b, t):
    kept = torch.where(t % 3 == 0, -100, t)
    return F.cross_entropy(logits(x, w, b), kept.view(-1), label_smoothing=0.1)


def summed_in_float32(x, w, b, t):
    return F.cross_entropy(logits(x, w, b).float(), t.view(-1), reduction="sum")


def with_z_loss(x, w, b, t):
    found = logits(x, w, b)
    z = torch.logsumexp(found, -1)
    return F.cross_entropy(found, t.view(-1)) + 0.01 * (z * z).mean()


def soft_capped(x, w, b, t):
    return F.cross_entropy(30 * torch.tanh(logits(x, w) / 30), t.view(-1)) * 2 + x.sin().mean()


def with_accuracy(x, w, b, t):
    found = logits(x, w, b)
    return F.cross_entropy(found, t.view(-1)), (found.argmax(-1) == t.view(-1)).sum()


def focal(x, w, b, t):
    p = F.log_softmax(logits(x, w, b), -1).gather(1, t.view(-1, 1)).squeeze(1)
    return -((1 - p.exp()) ** 2 * p).mean()


def two_heads(x, w, b, t):
    return plain(x, w, b, t) + plain(x * 2, w, b, (t + 1) % CLASSES)


def tied(x, w, b, t):
    return plain(F.embedding(t, w) + x, w, b, t)


def after_attention(x, w, b, t):
    """Attention has a side effect: it may draw random numbers."""
    q = F.pad(x.reshape(1, 1, -1, WIDTH), (0, 2))
    hidden = F.scaled_dot_product_attention(q, q, q)[0, 0, :, :WIDTH]
    return plain(hidden, w, b, t)


def of_columns(x, w, b, t):
    """The hidden states and the weight are stored by columns."""
    hidden = x.reshape(-1, WIDTH).t().contiguous().t()
    found = F.log_softmax(F.linear(hidden, w.t().contiguous().t(), b), -1)
    return F.nll_loss(found, t.reshape(-1), ignore_index=1)


def class_weights(x, w, b, t):
    """The hidden states are cut, not the logits."""
    hidden = x.reshape(-1, WIDTH)[1:]
    return F.cross_entropy(logits(hidden, w, b), t.reshape(-1)[1:], weight=b.detach().abs())


def hinge(x, w, b, t):
    found = logits(x, w)
    return F.relu(1 + found - found.gather(1, t.reshape(-1, 1))).sum(1).mean()


def entropy(x, w, b, t):
    p = F.softmax(logits(x, w, b), -1)
    return (p * torch.log(p + 1e-9)).sum()


def squares(x, w, b, t):
    return (F.gelu(F.linear(x, w, b)) @ w).square().mean()


PROGRAMS = [
    *(plain, ignored_and_smoothed, summed_in_float32, with_z_loss, soft_capped),
    *(with_accuracy, focal, two_heads, tied, after_attention, squares),
    *(of_columns, class_weights, hinge, entropy),
]
SHAPES = [((64,), torch.float32), ((61,), torch.bfloat16), ((4, 13), torch.float64)]


def arguments(shape, dtype):
    generator = torch.Generator().manual_seed(3)
    sizes = ((*shape, WIDTH), (CLASSES, WIDTH), (CLASSES,))
    made = [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in sizes]
    return *made, torch.randint(CLASSES, shape, generator=generator)


def gradients(program: Callable[..., object], args) -> list[torch.Tensor]:
    result = program(*args)
    loss = result[0] if isinstance(result, tuple) else result
    assert isinstance(loss, torch.Tensor)
    found = torch.autograd.grad(loss * 1.5, args[:3], allow_unused=True)
    return [loss.detach(), *(g for g in found if g is not None)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize(("shape", "dtype"), SHAPES)
def test_losses_and_gradients_are_as_in_eager(small_chunks, program, shape, dtype):
    args = arguments(shape, dtype)
    want = gradients(program, args)
    got = gradients(tofuse.compile(program, strict=True, hand_back=False), args)
    assert small_chunks
    rows = torch.Size(shape).numel()
    for graph in small_chunks:
        products = [op.result for op in graph.ops if op.kind == "opaque"]
        assert all(v.shape != (rows, CLASSES) for v in products)
    for a, b in zip(got, want, strict=True):
        tolerance = 2e-2 if dtype is torch.bfloat16 else 1e-5
        bound = tolerance * float(b.abs().max())
        torch.testing.assert_close(a, b, rtol=tolerance, atol=bound)


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-1e-3, 1e-3)


class Normalized(Clipped):
    @staticmethod
    def backward(ctx, grad):
        return grad / grad.norm()


class Shifted(Clipped):
    @staticmethod
    def backward(ctx, grad):
        return grad + 1e-3


class Rounded(Clipped):
    @staticmethod
    def backward(ctx, grad):
        return (grad * 1024).round() / 1024


@pytest.mark.parametrize("function", [Clipped, Normalized, Shifted, Rounded])
def test_gradients_that_are_not_linear_stay_in_the_backward(small_chunks, function):
    def program(x, w, b, t):
        return F.cross_entropy(function.apply(logits(x, w, b)), t.view(-1))

    args = arguments((64,), torch.float32)
    got, want = gradients(tofuse.compile(program), args), gradients(program, args)
    torch.testing.assert_close(got, want)


def test_a_gradient_that_is_clipped_by_a_hook(small_chunks):
    def program(x, w, b, t):
        found = logits(x, w, b)
        found.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
        return F.cross_entropy(found, t.view(-1))

    args = arguments((64,), torch.float32)
    torch.testing.assert_close(gradients(tofuse.compile(program), args), gradients(program, args))


def test_no_half_precision_tensor_is_as_large_as_the_logits(small_chunks):
    args = arguments((64,), torch.bfloat16)
    report = tofuse.explain(plain)(*args)
    assert small_chunks
    assert f"[64,{CLASSES}]" not in report.graphs[0].plan


def shifted(x, w, b, t):
    return F.cross_entropy(logits(x, w, b)[:-1], t.view(-1)[1:])


def exponential(x, w, b, t):
    return plain(x, w, b, t).mul(0.1).exp()


def transposed(x, w, b, t):
    return F.cross_entropy((w @ x.view(-1, WIDTH).t()).t(), t.view(-1))


def of_itself(x, w, b, t):
    return F.cross_entropy(x @ x, t.view(-1)[:WIDTH])


def test_a_product_of_a_tensor_with_itself(small_chunks):
    args = arguments((WIDTH,), torch.float32)
    args = (*args[:3], args[3] % WIDTH)
    torch.testing.assert_close(
        gradients(tofuse.compile(of_itself, strict=True), args), gradients(of_itself, args)
    )


@pytest.mark.parametrize("program", [shifted, exponential, transposed])
def test_gradients_of_products_that_stay_whole_stay_in_the_backward(small_chunks, program):
    args = arguments((64,), torch.float32)
    report = tofuse.explain(program, executors=("aten",))(*args)
    plan = report.graphs[0].plan
    assert plan.count("call aten.addmm") + plan.count("call aten.mm") == 1
    torch.testing.assert_close(gradients(tofuse.compile(program), args), gradients(program, args))


def returned(x, w, b, t):
    found = logits(x, w, b)
    return F.cross_entropy(found, t.view(-1)), found


def normalized_over_rows(x, w, b, t):
    return F.cross_entropy(logits(x, w).softmax(0), t.view(-1))


def two_layers(x, w, b, t):
    return (F.gelu(F.linear(F.gelu(F.linear(x, w, b)) @ w, w, b)) @ w).square().mean()


@pytest.mark.parametrize("program", [returned, normalized_over_rows])
def test_logits_that_leave_or_mix_rows_stay_whole(small_chunks, program):
    args = arguments((64,), torch.float32)
    torch.testing.assert_close(gradients(tofuse.compile(program), args), gradients(program, args))
    assert not small_chunks


def test_gradients_behind_another_layer_stay_in_the_backward(small_chunks):
    args = arguments((64,), torch.float32)
    report = tofuse.explain(two_layers, executors=("aten",), precision="eager")(*args)
    forward = report.graphs[0]  # with no kernel of two products
    assert forward.plan.count("call aten.addmm") + forward.plan.count("call aten.mm") == 4


HEAD = """graph(x: f32[{n},3], w: f32[3,30], t: i64[{n}]) {{
  l = opaque(x, w, target='aten.mm.default', args='$0, $1', shape=({n},30), dtype=f32) : f32[{n},30]
  m = amax(l, dims=(1,), dtype=f32) : f32[{n}]
  b = broadcast(m, shape=({n}, 30), dims=(0,)) : f32[{n},30]
  d = sub(l, b) : f32[{n},30]
  e = exp(d) : f32[{n},30]
  r = reshape(e, shape=({n}, 3, 10)) : f32[{n},3,10]
  s = sum(r, dims=(1, 2), dtype=f32) : f32[{n}]
  p = permute(e, dims=(1, 0)) : f32[30,{n}]
  g = opaque(p, x, target='aten.mm.default', args='$0, $1', shape=(30, 3), dtype=f32) : f32[30,3]
  k = reshape(t, shape=({n}, 1)) : i64[{n},1]
  h = take(l, k, dims=(0, -1), wrap=False) : f32[{n},1]
  c = sum(e, dims=(0,), dtype=f32) : f32[30]
  return s, g, h, c
}}"""


@pytest.mark.parametrize("rows", [8, 37, 64, 640])
def test_chunks_compute_the_same_and_hold_less(rows: int):
    graph = parse_graph(HEAD.format(n=rows))
    limits = ChunkLimits(product_bytes=1, chunk_bytes=30 * rows, chunk_rows=1)
    chunked = chunk_rows(graph, limits)
    verify_graph(chunked)
    assert unfused_peak(chunked) < 0.8 * unfused_peak(graph)
    x, w = torch.randn(rows, 3), torch.randn(3, 30)
    inputs = dict(zip(graph.inputs, (x, w, torch.randint(30, (rows,))), strict=True))
    got, want = run_graph(chunked, inputs, {}), run_graph(graph, inputs, {})
    for v in graph.outputs:
        assert v is not None
        torch.testing.assert_close(got[v], want[v], rtol=1e-5, atol=1e-4)
    assert chunk_rows(graph) is graph  # it is small
