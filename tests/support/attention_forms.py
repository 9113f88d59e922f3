"""Attention as users write it: what happens to the scores, which are masked, how they weigh."""

import math
import random

import torch

SCORES = {
    "plain": lambda s, _: s,
    "softcap": lambda s, _: 20 * torch.tanh(s / 20),
    "bias": lambda s, x: s + x["bias"],
    "key bias": lambda s, x: s + x["bias"][:1],
    "head slopes": lambda s, x: s - x["slopes"][:, None, None] * positions(s).abs(),
    "square": lambda s, _: s * s.abs(),
}
MASKS = {
    "none": lambda s, _: s,
    "causal": lambda s, _: s.masked_fill(positions(s) < 0, -math.inf),
    "tril": lambda s, _: s.masked_fill(torch.ones(s.shape[-2:]).tril() == 0, -1e9),
    "window": lambda s, _: torch.where(positions(s).abs() < 9, s, -math.inf),
    "prefix": lambda s, _: torch.where(
        (positions(s) >= 0) | (torch.arange(s.shape[-1]) < 5), s, -math.inf
    ),
    "padding": lambda s, x: s.masked_fill(
        torch.arange(s.shape[-1]) >= x["lengths"][:, None, None, None], -math.inf
    ),
    "documents": lambda s, x: torch.where(
        x["documents"][: s.shape[-2], None] == x["documents"][: s.shape[-1]], s, -math.inf
    ),
    "loaded": lambda s, x: s + x["mask"],
}
NORMS = {
    "softmax": lambda s, _: torch.softmax(s, -1),
    "by hand": lambda s, _: normalized(torch.exp(s - s.amax(-1, keepdim=True))),
    "off by one": lambda s, _: off_by_one(s),
    "sink": lambda s, x: with_sink(s, x["slopes"]),
    "sigmoid": lambda s, _: torch.sigmoid(s - math.log(s.shape[-1])),
    "linear": lambda s, _: torch.where(s > -1e8, s, 0) / 16,
    "float": lambda s, _: torch.softmax(s.float(), -1).to(s.dtype),
}
PRODUCTS = {
    "matmul": (lambda q, k: q @ k.transpose(-1, -2), lambda p, v: p @ v),
    "einsum": (
        lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k),
        lambda p, v: torch.einsum("bhij,bhjc->bhic", p, v),
    ),
    "transposed": (
        lambda q, k: (k @ q.transpose(-1, -2)).transpose(-1, -2),
        lambda p, v: (v.transpose(-1, -2) @ p.transpose(-1, -2)).transpose(-1, -2),
    ),
}


def positions(s):
    """Return the position of each query less that of each key; the last ones are aligned."""
    queries, keys = s.shape[-2:]
    return torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)


def normalized(e):
    return e / e.sum(-1, keepdim=True)


def off_by_one(s):
    most = s.amax(-1, keepdim=True).clamp(min=0)
    e = torch.exp(s - most)
    return e / (e.sum(-1, keepdim=True) + torch.exp(-most))


def with_sink(s, sinks):
    sink = sinks[:, None, None]
    most = torch.maximum(s.amax(-1, keepdim=True), sink)
    e = torch.exp(s - most)
    return e / (e.sum(-1, keepdim=True) + torch.exp(sink - most))


def make_attention(score, mask, norm, product, groups):
    scores, values = PRODUCTS[product]

    def attention(q, k, v, x):
        if groups > 1:
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        s = scores(q, k) / math.sqrt(q.shape[-1])
        s = MASKS[mask](SCORES[score](s, x), x)
        return values(NORMS[norm](s, x).to(v.dtype), v)

    return attention


def inputs(rng, dtype, groups):
    batch, heads = rng.randint(1, 3), groups * rng.randint(1, 3)
    keys = rng.choice([1, 7, 33, 64, 130, 200])
    queries = rng.choice([keys, max(1, keys // 2), 17 if keys > 17 else 1])
    depth, columns = rng.choice([1, 8, 33, 64]), rng.choice([5, 32, 64])
    q = torch.randn(batch, heads, queries, depth)
    k, v = (torch.randn(batch, heads // groups, keys, n) for n in (depth, columns))
    if rng.random() < 0.5:  # in memory as a projection makes them: heads inside of positions
        q, k, v = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v))
    mask = torch.zeros(queries, keys).masked_fill(torch.rand(queries, keys) < 0.3, -math.inf)
    mask[:, 0] = 0
    x = {"bias": torch.randn(heads, queries, keys), "slopes": torch.rand(heads), "mask": mask}
    x = {name: t.to(dtype) for name, t in x.items()}
    x |= {"lengths": torch.randint(1, keys + 1, (batch,)), "documents": torch.arange(keys) // 11}
    return [t.to(dtype) for t in (q, k, v)], x


def relative_error(result, exact):
    both_nan = result.isnan() & exact.isnan()
    difference = torch.where(both_nan, 0, result.double() - exact)
    return (difference.square().mean() / torch.nan_to_num(exact).square().mean()).sqrt().item()


def widened(x):
    return {n: t.double() if t.is_floating_point() else t for n, t in x.items()}


def random_form(seed):
    """Return the dtype of a random form of attention, the program, its tensors, and the others."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    dtype = rng.choice([torch.float32, torch.float32, torch.bfloat16])
    score, mask, norm, product = (
        rng.choice(list(choices)) for choices in (SCORES, MASKS, NORMS, PRODUCTS)
    )
    groups = rng.choice([1, 1, 2])
    attention = make_attention(score, mask, norm, product, groups)
    return dtype, attention, *inputs(rng, dtype, groups)
