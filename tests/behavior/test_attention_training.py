"""Gradients of attention as users write it: right, and without the scores in memory."""

import math
import random
import re

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.attention_forms import (
    NORMS,
    PRODUCTS,
    inputs,
    make_attention,
    random_form,
    relative_error,
    widened,
)

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def gradients(attention, tensors, grad, x):
    """Return the result, and the gradients of tensors and of the floats in `x`."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    others = {n: t.detach().requires_grad_() if t.is_floating_point() else t for n, t in x.items()}
    result = attention(*leaves, others)
    sources = [*leaves, *(t for t in others.values() if t.requires_grad)]
    return [result, *torch.autograd.grad(result, sources, grad, materialize_grads=True)]


def compiled(attention):
    return tofuse.compile(attention, dynamic=False, hand_back=False)


@pytest.mark.broad(20)
@pytest.mark.parametrize("seed", range(400))
def test_random_forms(seed):
    dtype, attention, tensors, x = random_form(seed)
    if tensors[1].shape[-2] >= 130:  # scores are much larger than queries and keys
        tensors[:2] = (torch.randn(*t.shape[:-1], 16).to(dtype) for t in tensors[:2])
    grad = torch.randn_like(attention(*tensors, x))
    wide = [t.double() for t in tensors]
    exact = gradients(attention, wide, grad.double(), widened(x))
    eager = gradients(attention, tensors, grad, x)
    ours = gradients(compiled(attention), tensors, grad, x)
    margin = 1e-6 if dtype == torch.float32 else 8e-3
    sizes = [rms(e) for e in exact]
    for size, e, o, a in zip(sizes, exact, ours, eager, strict=True):
        assert o.dtype == a.dtype and o.shape == a.shape
        size = max(size, max(sizes) / 3) * max(1, 8 / math.sqrt(max(1, e.numel())))
        assert torch.equal(o.isnan(), e.isnan()) or torch.equal(o.isnan(), a.isnan())
        assert rms(o - e) <= 1.3 * rms(a - e) + margin * size


def rms(t):
    """Return the root of the mean square of the numbers of a tensor that are not NaN."""
    return t.detach().double().square().nanmean().sqrt().item()


FORMS = [
    *((score, "none", "softmax", "matmul", 1) for score in ("plain", "softcap", "square")),
    *(("plain", mask, "softmax", "matmul", 1) for mask in ("causal", "tril", "window", "padding")),
    *(("plain", "causal", norm, "matmul", 1) for norm in ("sigmoid", "linear", "float")),
    *(("plain", "none", "softmax", product, 1) for product in PRODUCTS),
    *(("plain", "causal", "softmax", product, 3) for product in PRODUCTS),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: " ".join(map(str, form)))
def test_neither_forward_nor_backward_stores_scores(form):
    *_, groups = form
    attention = make_attention(*form)
    rng = random.Random(1)
    _, x = inputs(rng, torch.float32, 1)
    x |= {"slopes": torch.rand(3), "lengths": torch.tensor([200, 9])}
    q = torch.randn(2, 3, 200, 16, requires_grad=True)
    k, v = (torch.randn(2, 3 // groups, 200, 16, requires_grad=True) for _ in range(2))
    report = tofuse.explain(attention)(q, k, v, x)
    assert not report.library_calls
    assert len(report.graphs) == 2
    assert all(largest_result(graph) < 200 * 200 for graph in report.graphs)


def largest_result(graph):
    """Return the elements of the largest tensor that a plan allocates."""
    shapes = re.findall(r"allocate\S* .*?\[([\d,]+)\]", f"{graph.plan}")
    assert shapes
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


def rotated(x):
    angles = torch.arange(x.shape[-2])[:, None] * 100.0 ** -torch.linspace(0, 1, x.shape[-1] // 2)
    left, right = x.chunk(2, -1)
    parts = left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()
    return torch.cat(parts, -1)


def test_rotated_queries_and_keys():
    attention = make_attention("plain", "causal", "softmax", "matmul", 1)

    def program(q, k, v, x):
        return attention(rotated(q), rotated(k), v, x)

    tensors = [torch.randn(2, 3, 150, 16) for _ in range(3)]
    grad = torch.randn(2, 3, 150, 16)
    exact = gradients(program, [t.double() for t in tensors], grad.double(), {})
    for e, o in zip(exact, gradients(compiled(program), tensors, grad, {}), strict=True):
        assert relative_error(o, e) < 1e-6
    q, k, v = (t.requires_grad_() for t in tensors)
    report = tofuse.explain(program)(q, k, v, {})
    assert not report.library_calls


def test_dropout_draws_the_same_numbers_again():
    """The values depend on q and v, and the gradients must be of the same random weights."""

    def attention(q, k, v):
        return F.dropout(torch.softmax(q @ k.transpose(-1, -2), -1), 0.4) @ v

    q, k, v, grad = (torch.randn(2, 3, 150, 16) for _ in range(4))
    run = compiled(attention)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    torch.manual_seed(3)
    result = run(*leaves)
    of_q, _, of_v = torch.autograd.grad(result, leaves, grad)
    result = result.detach()
    torch.testing.assert_close((of_v * v).sum(), (result * grad).sum(), rtol=1e-4, atol=1e-3)
    step = 1e-2 * torch.randn_like(q)
    torch.manual_seed(3)
    above = run(q.detach() + step, k.detach(), v.detach())
    torch.manual_seed(3)
    below = run(q.detach() - step, k.detach(), v.detach())
    change = ((above - below) * grad).sum().detach()
    torch.testing.assert_close(2 * (of_q * step).sum(), change, rtol=2e-2, atol=1e-2)


def test_returned_weights_are_read_again():
    def attention(q, k, v):
        weights = torch.softmax(q @ k.transpose(-1, -2), -1)
        return weights @ v, weights

    leaves = [torch.randn(2, 3, 150, 16, requires_grad=True) for _ in range(3)]
    grads = [torch.randn(2, 3, 150, n) for n in (16, 150)]
    wide = [t.detach().double().requires_grad_() for t in leaves]
    exact = torch.autograd.grad(attention(*wide), wide, [g.double() for g in grads])
    ours = torch.autograd.grad(compiled(attention)(*leaves), leaves, grads)
    for e, o in zip(exact, ours, strict=True):
        assert relative_error(o, e) < 1e-6


def maximal_similarity(q, k, v):
    s = q @ k.mT
    return s.amax(-1).mean() + s.amax(-2).mean() + v.sum()


def less_half_of_maximum(q, k, v):
    s = q @ k.mT
    return (s - 0.5 * s.amax(-1, keepdim=True)) @ v


def nearest(q, k, v):
    d = (q * q).sum(-1, keepdim=True) + (k * k).sum(-1)[..., None, :] - 2 * q @ k.mT
    return torch.exp(d.amin(-1, keepdim=True) - d) @ v


def over_maximum(q, k, v):
    s = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    return (s / s.amax(-1, keepdim=True)) @ v


def shared_queries(q, k, v):
    return torch.softmax(q[0] @ k.mT, -1) @ v


def two_hops(q, k, v):
    p = torch.softmax(q @ k.mT, -1)
    return p @ (p @ v)


def twice(q, k, v):
    return torch.softmax((torch.softmax(q @ k.mT, -1) @ v) @ k.mT, -1) @ v


def detached_maximum(q, k, v):
    s = q @ k.mT
    e = torch.exp(s - s.amax(-1, keepdim=True).detach())
    return (e / e.sum(-1, keepdim=True)) @ v


def maximum_with_index(q, k, v):
    s = q @ k.mT
    e = torch.exp(s - s.max(-1, keepdim=True)[0])
    return (e / e.sum(-1, keepdim=True)) @ v


def of_both_dimensions(q, k, v):
    s = q @ k.mT
    return (torch.softmax(s, -1) + torch.softmax(s, -2)) @ v


PROGRAMS = [
    *(maximal_similarity, less_half_of_maximum, nearest, over_maximum, shared_queries),
    *(two_hops, twice, detached_maximum, maximum_with_index, of_both_dimensions),
]


@pytest.mark.broad(6)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("depth", [4, 16, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_forward_and_backward_have_the_same_scores(program, depth, dtype):
    """The position of a maximum, and exponentials, would differ with scores rounded otherwise."""
    tensors = [(1.7 * torch.randn(2, 260, depth)).to(dtype) for _ in range(3)]
    grad = torch.randn_like(program(*tensors))

    def run(q, k, v, _):
        return program(q, k, v)

    exact = gradients(run, [t.double() for t in tensors], grad.double(), {})
    eager = gradients(run, tensors, grad, {})
    ours = gradients(compiled(run), tensors, grad, {})
    margin = 1e-5 if dtype == torch.float32 else 2e-2
    for e, o, a in zip(exact, ours, eager, strict=True):
        assert rms(o - e) <= 2 * rms(a - e) + margin * rms(e)


def heads_last(q, k, v):
    q, k, v = (t.transpose(1, 2).unsqueeze(-1) for t in (q, k, v))
    scores = torch.einsum("bdlh,bdmh->bhlm", q, k) / 4
    return torch.einsum("bhlm,bdmh->bdlh", scores.softmax(-1), v)


def every_second(q, k, v):
    return torch.softmax(q[:, ::2] @ k[:, ::2].mT, -1) @ v[:, ::2]


def one_head(q, k, v):
    return (torch.softmax(q[0] @ k[0].T / 4, -1) @ v[0]).relu()


def few_keys(q, k, v):
    return torch.softmax(q @ k[:, :199].mT / 4, -1) @ v[:, :199, :7]


@pytest.mark.parametrize("program", [heads_last, every_second, one_head, few_keys])
@pytest.mark.parametrize("length", [0, 1, 131, 257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_other_layouts_and_lengths(program, length, dtype):
    tensors = [torch.randn(16, length, 2).to(dtype).transpose(0, 2) for _ in range(3)]
    grad = torch.ones_like(program(*tensors))

    def run(q, k, v, _):
        return program(q, k, v)

    exact = gradients(run, [t.double() for t in tensors], grad.double(), {})
    eager = gradients(run, tensors, grad, {})
    ours = gradients(compiled(run), tensors, grad, {})
    margin = 2e-6 if dtype in (torch.float32, torch.float64) else 1e-2
    for e, o, a in zip(exact, ours, eager, strict=True):
        assert o.shape == e.shape
        assert (o - e).norm() <= 1.5 * (a - e).norm() + margin * max(1, e.norm())


def test_long_chains_of_operations_and_positions():
    def attention(q, k, v):
        s = q @ k.mT
        for _ in range(100):
            s = torch.sin(s) + 0.01 * s * s
        a, b = torch.arange(150), torch.arange(150).flip(0)
        for _ in range(12):
            a, b = b, (a + b) % 1000
        return torch.softmax(s + 1e-3 * a, -1) @ v

    q, k, v = (0.1 * torch.randn(2, 150, 16) for _ in range(3))
    exact = attention(*(t.double() for t in (q, k, v)))
    ours = compiled(attention)(*(t.requires_grad_() for t in (q, k, v)))
    ours.sum().backward()
    assert relative_error(ours.detach(), exact) < 1e-5


@pytest.mark.parametrize("options", [{"precision": "eager"}, {"executors": ("aten", "llvm")}])
def test_libraries_that_compute_the_products_compute_them_once(options):
    attention = make_attention("plain", "causal", "softmax", "matmul", 1)
    leaves = [torch.randn(2, 3, 150, 16, requires_grad=True) for _ in range(3)]
    report = tofuse.explain(attention, **options)(*leaves, {})
    assert sum(call.name.startswith("aten.bmm") for call in report.library_calls) == 6


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_large_scores_of_half_precision(norm, dtype):
    """A maximum that was rounded apart from the scores would make their exponentials large."""
    attention = make_attention("plain", "causal", norm, "matmul", 1)
    tensors = [(scale * torch.randn(1, 4, 256, 16)).to(dtype) for scale in (30, 30, 1)]
    grad, x = torch.randn(1, 4, 256, 16).to(dtype), {"slopes": torch.rand(4).to(dtype)}
    exact = gradients(attention, [t.double() for t in tensors], grad.double(), widened(x))
    eager = gradients(attention, tensors, grad, x)
    ours = gradients(compiled(attention), tensors, grad, x)
    for e, o, a in zip(exact, ours, eager, strict=True):
        assert rms(o - e) <= 1.1 * rms(a - e) + 1e-2 * rms(e)


def test_scores_of_half_precision_are_rounded_by_no_kernel():
    attention = make_attention("plain", "none", "softmax", "matmul", 1)
    q, k, v = (torch.randn(1, 4, 256, 16).bfloat16() for _ in range(3))
    exact = attention(q.double(), k.double(), v.double(), {})
    inference = compiled(attention)(q, k, v, {})
    training = compiled(attention)(*(t.requires_grad_() for t in (q, k, v)), {})
    assert relative_error(training, exact) <= 1.02 * relative_error(inference, exact)
