"""Attention with bias, masks, and options that are constants or inputs."""

import itertools
import math
import random

import pytest
import torch
import torch.nn.functional as F

from tests.frontends.support import build_definition, check
from tofuse.errors import DefinitionError
from tofuse.nvfuser import DataType, FusionDefinition

DROPOUT, CAUSAL, SCALE = DataType.Double, DataType.Bool, DataType.Double


def operands(queries=5, keys=7, width=8, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    sizes = (queries, keys, keys)
    return [torch.randn(2, 3, n, width, generator=generator).to(dtype) for n in sizes]


def attend(q, k, v, bias=None, mask=None, causal=False, scale=None):
    """Return attention and the logarithm of the sum of its exponentials, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias.double()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    if causal:
        below = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~below, -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def gradients(q, k, v, grad, **options):
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    out, _ = attend(*leaves, **options)
    return torch.autograd.grad(out, leaves, grad.double())


def close(results, wanted, rtol=1e-4, atol=1e-5):
    for result, reference in zip(results, wanted, strict=True):
        torch.testing.assert_close(result.double(), reference, rtol=rtol, atol=atol)


def test_attention():
    q, k, v = operands(8, 8, 16)
    grad = torch.randn(2, 3, 8, 16)

    def body(fd, q, k, v, g):
        out, total, seed, offset = fd.ops.sdpfa_fwd(q, k, v, None, True)
        grads = fd.ops.sdpfa_bwd(g, q, k, v, out, total, 0.0, True, seed, offset)
        return [out, *grads]

    def expected(*given):
        q, k, v = (t.clone().requires_grad_() for t in given[:3])
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return [out.detach(), *torch.autograd.grad(out, (q, k, v), given[3])]

    check(body, expected, [q, k, v, grad], rtol=1e-4, atol=1e-5)


def test_bias_and_mask():
    q, k, v = operands()
    bias, mask = torch.randn(2, 1, 5, 7), torch.randn(1, 3, 1, 7) > -1.0
    mask[..., 0] = True
    fd = build_definition(
        lambda fd, q, k, v, b, m: [
            r
            for o in (
                {"bias": b},
                {"mask": m},
                {"bias": b, "mask": m},
                {"bias": b, "is_causal": True},
                {"bias": b, "mask": m, "scale": 0.25},
            )
            for r in fd.ops.sdpfa_fwd(q, k, v, **o)[:2]
        ],
        [q, k, v, bias, mask],
    )
    wanted = [
        *attend(q, k, v, bias),
        *attend(q, k, v, None, mask),
        *attend(q, k, v, bias, mask),
        *attend(q, k, v, bias, causal=True),
        *attend(q, k, v, bias, mask, scale=0.25),
    ]
    close(fd.execute([q, k, v, bias, mask]), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_options_that_are_inputs(dtype):
    q, k, v = operands(dtype=dtype)
    grad = operands(dtype=dtype)[0].flip(-1)
    with FusionDefinition() as fd:
        a, b, c, g = map(fd.from_pytorch, (q, k, v, grad))
        p, causal, scale = map(fd.define_scalar, (DROPOUT, CAUSAL, SCALE))
        out, total, seed, offset = fd.ops.sdpfa_fwd(a, b, c, None, None, p, causal, scale)
        grads = fd.ops.sdpfa_bwd(g, a, b, c, out, total, p, causal, seed, offset, scale)
        assert out.dtype == a.dtype and total.dtype is (
            DataType.Double if dtype is torch.float64 else DataType.Float
        )
        for result in (out, total, *grads):
            fd.add_output(result)
    narrow = dtype is torch.bfloat16
    tolerances = {"rtol": 2e-2, "atol": 2e-2} if narrow else {}
    for causal_now, scale_now in itertools.product((False, True), (0.25, 1.0)):
        options = {"causal": causal_now, "scale": scale_now}
        wanted = [*attend(q, k, v, **options), *gradients(q, k, v, grad, **options)]
        close(fd.execute([q, k, v, grad, 0.0, causal_now, scale_now]), wanted, **tolerances)
    assert fd.compilations == 1


@pytest.mark.parametrize("as_input", [False, True])
def test_dropout(as_input):
    q, k, _ = operands(64, 64)
    v = torch.eye(64).expand(2, 3, 64, 64).contiguous()  # the output is the dropped weights
    grad = torch.randn(2, 3, 64, 64)
    with FusionDefinition() as fd:
        a, b, c, g = map(fd.from_pytorch, (q, k, v, grad))
        p = fd.define_scalar(DROPOUT) if as_input else 0.25
        out, total, seed, offset = fd.ops.sdpfa_fwd(a, b, c, dropout_p=p)
        grads = fd.ops.sdpfa_bwd(g, a, b, c, out, total, p, False, seed, offset, None)
        for result in (out, *grads):
            fd.add_output(result)
    weights = attend(q, k, v)[0]
    found = fd.execute([q, k, v, grad, *([0.25] if as_input else [])])
    kept = found[0] != 0
    assert abs(kept.double().mean() - 0.75) < 0.02
    leaves = [t.double().requires_grad_() for t in (q, k, v)]
    dropped = (leaves[0] @ leaves[1].mT / math.sqrt(8)).softmax(-1) * kept / 0.75
    torch.testing.assert_close(found[0].double(), weights * kept / 0.75, rtol=1e-4, atol=1e-5)
    close(found[1:], torch.autograd.grad(dropped @ leaves[2], leaves, grad.double()))
    again = fd.execute([q, k, v, grad, *([0.25] if as_input else [])])
    assert not torch.equal(again[0], found[0])


def test_symbolic_sizes_and_more_dimensions():
    with FusionDefinition() as fd:
        a, b, c = (fd.define_tensor([-1] * 5) for _ in range(3))
        m = fd.define_tensor([-1, -1, 1, 1, -1], dtype=DataType.Bool)
        out, total, *_ = fd.ops.sdpfa_fwd(a, b, c, mask=m)
        fd.add_output(out)
        fd.add_output(total)
    for sizes in ((2, 3, 2, 5, 7, 8), (1, 1, 1, 1, 1, 1), (2, 1, 3, 4, 2, 3)):
        *batch, heads, queries, keys, width = sizes
        q = torch.randn(*batch, heads, queries, width)
        k, v = (torch.randn(*batch, heads, keys, width) for _ in range(2))
        mask = torch.ones(*batch, 1, 1, keys, dtype=torch.bool)
        mask[..., 1:] = torch.randn(*batch, 1, 1, keys)[..., 1:] > 0
        close(fd.execute([q, k, v, mask]), attend(q, k, v, None, mask))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": torch.ones(2, 3, 5, 7)}, "the mask must have type Bool"),
        ({"bias": torch.ones(2, 3, 5, 6)}, "at dimension 3"),
        ({"bias": torch.ones(1, 2, 3, 5, 7)}, "bias and mask must broadcast"),
    ],
)
def test_wrong_bias_and_mask_raise(options, message):
    q, k, v = operands()
    with FusionDefinition() as fd:
        inputs = [fd.from_pytorch(t, static_sizes=True) for t in (q, k, v)]
        given = {name: fd.from_pytorch(t, static_sizes=True) for name, t in options.items()}
        with pytest.raises(DefinitionError, match=f"sdpfa_fwd: .*{message}"):
            fd.ops.sdpfa_fwd(*inputs, **given)


# -- layouts --------------------------------------------------------------------------------------


def laid_out(rng, sizes, dtype, expanded=(None, None, None, 0, 1)):
    """Return a tensor of these sizes whose dimensions lie in memory in a random order.

    One of `expanded` is a dimension of stride 0.
    """
    order, expanded = rng.sample(range(len(sizes)), len(sizes)), rng.choice(expanded)
    stored = [1 if d == expanded else n for d, n in enumerate(sizes)]
    generator = torch.Generator().manual_seed(rng.randrange(99))
    x = torch.randn([stored[d] for d in order], generator=generator).to(dtype)
    return x.permute([order.index(d) for d in range(len(sizes))]).expand(sizes)


def same_order(x, like):
    """Whether a tensor is dense, and its dimensions have the order of another's in memory."""
    order = sorted((d for d in range(like.dim()) if like.stride(d)), key=lambda d: -like.stride(d))
    for d in range(like.dim()):
        if not like.stride(d):
            order.insert(d, d)  # an expanded dimension keeps its place
    return x.permute(order).is_contiguous()


@pytest.mark.parametrize("seed", range(24))
def test_results_have_the_layouts_of_query_key_and_value(seed):
    rng = random.Random(seed)
    sizes = [rng.choice((1, 2, 3, 5, 7)) for _ in range(6)]
    batch, heads, queries, keys, width, value_width = sizes
    dtype, flash = rng.choice((torch.float32, torch.bfloat16)), rng.random() < 0.6
    value_width = width if flash else value_width  # PyTorch's flash attention wants them equal
    shapes = [(batch, heads, *s) for s in ((queries, width), (keys, width), (keys, value_width))]
    swapped = rng.random() < 0.4
    q = laid_out(rng, shapes[0], dtype, (None,) if swapped else (None, None, 0, 1))
    k, v = (laid_out(rng, s, dtype) for s in shapes[1:])
    grad = laid_out(rng, (batch, heads, queries, value_width), dtype)
    causal = rng.random() < 0.3
    added = {
        "bias": laid_out(rng, (batch, heads, queries, keys), dtype),
        "mask": laid_out(rng, (batch, heads, queries, keys), dtype) > -3.0,
    }
    added = {name: t for name, t in added.items() if rng.random() < 0.4}
    with FusionDefinition() as fd:
        static = rng.random() < 0.5
        given = (q.transpose(1, 2) if swapped else q, k, v, grad, *added.values())
        a, b, c, g, *extra = (fd.from_pytorch(t, static_sizes=static) for t in given)
        a = fd.ops.permute(a, [0, 2, 1, 3]) if swapped else a
        p = 0.0 if flash else fd.define_scalar(DROPOUT)
        options = dict(zip(added, extra, strict=True), dropout_p=p, is_causal=causal)
        out, total, *state = fd.ops.sdpfa_fwd(a, b, c, **options)
        backward = (g, a, b, c, out, total, p, causal, *state)
        for result in (out,) if added else (out, *fd.ops.sdpfa_bwd(*backward)):
            fd.add_output(result)
    results = fd.execute([*given, *([] if flash else [0.0])])
    wanted = [attend(q, k, v, causal=causal, **added)[0]]
    wanted += [] if added else gradients(q, k, v, grad, causal=causal)
    tolerance = 3e-2 if dtype is torch.bfloat16 else 1e-4
    close(results, wanted, rtol=tolerance, atol=tolerance)
    for result, like in zip(results, (q, q, k, v), strict=False):
        assert same_order(result, like), (result.stride(), like.stride())


@pytest.mark.parametrize("static", [False, True])
def test_empty_queries_heads_and_batches(static):
    with FusionDefinition() as fd:
        given = operands()
        a, b, c = (fd.from_pytorch(t, static_sizes=False) for t in given)
        out, total, *state = fd.ops.sdpfa_fwd(a, b, c)
        for result in (out, *fd.ops.sdpfa_bwd(out, a, b, c, out, total, 0.0, False, *state)):
            fd.add_output(result)
    for batch, heads, queries in ((2, 3, 5), (2, 3, 0), (2, 0, 5), (0, 3, 5), (4, 1, 2)):
        q, k, v = (torch.randn(batch, heads, n, 8) for n in (queries, 7, 7))
        if static:
            with FusionDefinition() as fd:
                out = fd.ops.sdpfa_fwd(*(fd.from_pytorch(t, static_sizes=True) for t in (q, k, v)))
                fd.add_output(out[0])
        close(fd.execute([q, k, v])[:1], attend(q, k, v)[:1])
    q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 0, 8), torch.randn(2, 3, 0, 8)
    if not static:
        with pytest.raises(DefinitionError, match="no maximum"):
            fd.execute([q, k, v])


def test_values_of_another_width():
    with FusionDefinition() as fd:
        a, b, c = (fd.define_tensor([-1] * 4) for _ in range(3))
        fd.add_output(fd.ops.sdpfa_fwd(a, b, c)[0])
    for width, value_width in ((8, 8), (8, 5), (3, 8)):
        q, k = torch.randn(2, 3, 5, width), torch.randn(2, 3, 7, width)
        v = torch.randn(2, 3, 7, value_width)
        close(fd.execute([q, k, v]), attend(q, k, v)[:1])
