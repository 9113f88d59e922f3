"""Attention as users write it: one kernel, whatever happens to the scores; random forms."""

import math
import random

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.attention_forms import (
    MASKS,
    SCORES,
    inputs,
    make_attention,
    random_form,
    relative_error,
    widened,
)

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def strides(t):
    """Return the strides of all dimensions of more than one element."""
    return [stride for n, stride in zip(t.shape, t.stride(), strict=True) if n > 1]


@pytest.mark.broad(8)
@pytest.mark.parametrize("seed", range(400))
def test_random_forms(seed):
    dtype, attention, (q, k, v), x = random_form(seed)
    exact = attention(q.double(), k.double(), v.double(), widened(x))
    eager = attention(q, k, v, x)
    ours = tofuse.compile(attention, dynamic=False, hand_back=False)(q, k, v, x)
    assert ours.dtype == eager.dtype and ours.shape == eager.shape
    assert strides(ours) == strides(eager)
    margin = 2e-7 if dtype == torch.float32 else 2e-3
    assert relative_error(ours, exact) <= 1.1 * relative_error(eager, exact) + margin


@pytest.mark.parametrize("score", SCORES)
# of "prefix", the positions of queries and of keys are one tensor, which has a kernel of its own
@pytest.mark.parametrize("mask", [name for name in MASKS if name != "prefix"])
@pytest.mark.broad(4)
def test_one_kernel(score, mask):
    torch.manual_seed(0)
    attention = make_attention(score, mask, "softmax", "matmul", 1)
    q, k, v = (torch.randn(2, 3, 64, 32) for _ in range(3))
    _, x = inputs(random.Random(0), torch.float32, 1)
    x |= {"bias": torch.randn(3, 64, 64), "slopes": torch.rand(3), "mask": torch.zeros(64, 64)}
    x |= {"lengths": torch.tensor([64, 3]), "documents": torch.arange(64) // 11}
    report = tofuse.explain(attention)(q, k, v, x)
    assert len(report.library_calls) == 0 and len(report.kernels) == 1


def test_grouped_heads_are_one_kernel():
    attention = make_attention("plain", "causal", "softmax", "matmul", 4)
    q, k, v = torch.randn(1, 8, 64, 32), torch.randn(1, 2, 64, 32), torch.randn(1, 2, 64, 32)
    report = tofuse.explain(attention)(q, k, v, {})
    assert len(report.library_calls) == 0 and len(report.kernels) == 1
    assert report.bytes_after == 4 * (2 * q.numel() + 2 * k.numel())


def test_a_small_mlp_is_one_kernel():
    def mlp(x, a, b, c):
        return torch.sigmoid(F.gelu(F.gelu(x @ a) @ b) @ c)

    x = torch.randn(1000, 32)
    weights = [torch.randn(32, 64), torch.randn(64, 64), torch.randn(64, 3)]
    report = tofuse.explain(mlp)(x, *weights)
    assert len(report.library_calls) == 0 and len(report.kernels) == 1
    ours = tofuse.compile(mlp, dynamic=False, hand_back=False)(x, *weights)
    exact = mlp(*(t.double() for t in (x, *weights)))
    assert relative_error(ours, exact) <= 1.1 * relative_error(mlp(x, *weights), exact) + 1e-7


def test_nearest_centers_store_no_distances():
    def nearest(x, centers):
        d = (x * x).sum(1, keepdim=True) - 2 * x @ centers.T + (centers * centers).sum(1)
        return d.argmin(1)

    x, centers = torch.randn(3000, 40), torch.randn(500, 40)
    report = tofuse.explain(nearest)(x, centers)
    assert len(report.library_calls) == 0
    ours = tofuse.compile(nearest, dynamic=False, hand_back=False)(x, centers)
    torch.testing.assert_close(ours, nearest(x, centers))


def test_eager_precision_keeps_the_library():
    attention = make_attention("plain", "causal", "softmax", "matmul", 1)
    q, k, v = (torch.randn(1, 2, 64, 32) for _ in range(3))
    report = tofuse.explain(attention, precision="eager")(q, k, v, {})
    assert len(report.library_calls) == 2


@pytest.mark.parametrize("mask", ["causal", "window", "documents", "tril"])
def test_bits_do_not_depend_on_the_number_of_threads(mask):
    attention = make_attention("plain", mask, "softmax", "matmul", 1)
    q, k, v = (torch.randn(1, 3, 300, 32) for _ in range(3))
    x, found, threads = {"documents": torch.arange(300) // 70}, [], torch.get_num_threads()
    try:
        for count in (1, 2, 3, 5):
            torch.set_num_threads(count)
            torch._dynamo.reset()
            found.append(tofuse.compile(attention, dynamic=False, hand_back=False)(q, k, v, x))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], y) for y in found)


WRAPPED = {
    "lengths of 8 bits": lambda s, n: s.masked_fill(
        torch.arange(s.shape[-1]) >= (n.to(torch.uint8)[:1] - 4).long(), -math.inf
    ),
    "negative": lambda s, n: torch.where(-(n.to(torch.uint8)) > 0, s, -math.inf),
    "sums of 8 bits": lambda s, n: s.masked_fill(
        n.to(torch.int8) + n.to(torch.int8)[:, None] < 0, -math.inf
    ),
    "products of 32 bits": lambda s, n: torch.where(
        n.int() * 9000 * n.int()[:, None] <= 0, s, -math.inf
    ),
    "signs": lambda s, n: s.masked_fill(
        torch.arange(s.shape[-1]) < (n[:1] + 198).to(torch.uint8).to(torch.int8).long(), -math.inf
    ),
    "great numbers": lambda s, n: s.masked_fill(n + (2**63 - 300) < 0, -math.inf),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_masks_of_integers_that_wrap(name):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 513, 16) for _ in range(3))
    n = torch.arange(513) + 2

    def attention(q, k, v, n):
        return torch.softmax(WRAPPED[name](q @ k.transpose(-1, -2), n), -1) @ v

    ours = tofuse.compile(attention, dynamic=False, hand_back=False)(q, k, v, n)
    exact = attention(q.double(), k.double(), v.double(), n)
    assert relative_error(ours, exact) < 1e-5


def test_rows_masked_as_a_whole_by_a_number_in_float64():
    def attention(q, k, v):
        i = torch.arange(k.shape[-2])
        s = (q @ k.transpose(-1, -2)).double().masked_fill(i[:, None] <= i, -1e9)
        return torch.softmax(s, -1).to(v.dtype) @ v

    q, k = ((torch.randn(1, 1, 300, 16) * 2).round() for _ in range(2))
    v = torch.randn(1, 1, 300, 16)
    ours = tofuse.compile(attention, dynamic=False, hand_back=False)(q, k, v)
    assert relative_error(ours, attention(q.double(), k.double(), v.double())) < 1e-5


def cosine(q, k, v):
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    p = torch.softmax(10 * torch.einsum("bihd,bjhd->bhij", q, k), -1)
    return torch.einsum("bhij,bjhc->bihc", p, v)


def retention(q, k, v):
    behind = torch.arange(q.shape[1])[:, None] - torch.arange(k.shape[1])
    decay = torch.where(behind >= 0, 0.97 ** behind.clamp(min=0).to(q.dtype), 0)
    return torch.einsum("bhij,bjhc->bihc", torch.einsum("bihd,bjhd->bhij", q, k) * decay, v)


def with_entropy(q, k, v):
    p = torch.softmax(torch.einsum("bihd,bjhd->bhij", q, k) / 8, -1)
    return torch.einsum("bhij,bjhc->bihc", p, v), -(p * torch.log(p + 1e-9)).sum(-1)


@pytest.mark.parametrize("attention", [cosine, retention, with_entropy])
@pytest.mark.parametrize("sizes", [(2, 37, 53, 3, 17, 11), (1, 1, 97, 2, 8, 8), (0, 5, 7, 2, 4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_heads_behind_positions_and_gradients(attention, sizes, dtype):
    """`strict`: a program that does not compile is an error."""
    torch.manual_seed(0)
    batch, queries, keys, heads, depth, columns = sizes
    q = torch.randn(batch, 2 * queries, heads, depth, dtype=dtype)[:, ::2]
    k, v = (torch.randn(batch, keys, heads, n, dtype=dtype) for n in (depth, columns))
    found = []
    for fn in (tofuse.compile(attention, dynamic=False, hand_back=False, strict=True), attention):
        inputs = [t.detach().requires_grad_() for t in (q, k, v)]
        results = fn(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        gradients = torch.autograd.grad([r.square().sum() for r in results], inputs)
        found.append([*results, *gradients])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("query_heads", [2, 6])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_cache_that_grows(dtype: torch.dtype, query_heads: int):
    """Keys and values of lengths with two names are one program, compiled twice at most."""

    def step(q, k, v, keys, values):
        keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        attended = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        return attended * 2, keys, values

    torch._dynamo.reset()
    captures = torch._dynamo.utils.counters["stats"]
    before = captures["unique_graphs"]
    compiled = tofuse.compile(step, hand_back=False)
    g = torch.Generator().manual_seed(0)

    def random(heads: int, length: int) -> torch.Tensor:
        return torch.randn(1, heads, length, 32, generator=g).to(dtype)

    keys, values = random(2, 300), random(2, 300)
    with torch.no_grad():
        for _ in range(5):
            token = random(query_heads, 1), random(2, 1), random(2, 1)
            actual, expected = compiled(*token, keys, values), step(*token, keys, values)
            torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.02)
            _, keys, values = actual
        report = tofuse.explain(compiled)(*token, keys, values)
    assert captures["unique_graphs"] - before <= 3, "a capture for explain"
    assert report.regions, report
