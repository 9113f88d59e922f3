"""cat, stack and pad of computed values: fused where that is cheap, refused with the reason."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager, kernels

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def rope(q, cos, sin):
    half = q.shape[-1] // 2
    turned = torch.cat((-q[..., half:], q[..., :half]), -1)
    return q * cos + turned * sin


@pytest.mark.parametrize("width", [2, 10, 64])
def test_rotary_embedding_is_one_kernel(width):
    tables = torch.randn(7, width), torch.randn(7, width)
    q = torch.randn(2, 3, 7, width, requires_grad=True)
    assert_as_eager(rope, q, *tables)
    assert len(kernels(rope, q.detach(), *tables)) == 1


JOINS = {
    "rows": (1, lambda x, y: torch.cat([x.sin(), y * 2, x.exp()], 0).sum(1)),
    "a norm": (1, lambda x, y: torch.cat([x.sin(), y * 2, x], 1).softmax(1)),
    "padding": (1, lambda x, y: F.pad(x * y, (1, 2, 0, 1)) + 1),
    "one in another": (1, lambda x, y: torch.cat([torch.cat([x * 2, y], 0) + 1, y.sin()], 0)),
    "interleaved": (1, lambda x, y: torch.stack([x.sin(), y.cos()], -1).flatten(1)),
    "needed alone": (1, lambda x, y: (torch.cat([x.sin(), y * x.sin()], 1), x.sin() * 3)),
    "merged": (2, lambda x, y: torch.cat([x.relu().flatten(), y.flatten() * 2]).view(2, -1)),
}


@pytest.mark.parametrize("name", JOINS)
def test_joins_of_computed_values(name):
    count, fn = JOINS[name]
    for shape in ((5, 7), (1, 1), (33, 64)):
        x, y = (torch.randn(shape, requires_grad=True) for _ in range(2))
        assert_as_eager(fn, x, y, rtol=1e-4, atol=1e-5, calls=1)
    report = tofuse.explain(fn)(torch.randn(33, 64), torch.randn(33, 64))
    assert len(report.kernels) == count
    if count > 1:
        rules = " ".join(v.rule for v in report.verdicts if not v.fused)
        assert "written directly into the cat" in rules


def soft_tree(x, depth):
    """A product of decisions along each path of a tree: a stack of stacks."""
    paths = torch.ones(len(x), 1)
    for level in range(depth):
        go = x[:, 2**level - 1 : 2 ** (level + 1) - 1].sigmoid()
        paths = torch.stack([paths * go, paths * (1 - go)], -1).flatten(1)
    return paths


@pytest.mark.parametrize("depth", [2, 4, 5, 6])
def test_what_the_pieces_of_stacks_have_in_common_is_computed_once(depth):
    x = torch.randn(33, 2**depth - 1, requires_grad=True)
    assert_as_eager(soft_tree, x, depth)
    report = tofuse.explain(soft_tree)(x.detach(), depth)
    statements = [s for k in report.kernels for s in k.loops.partition("nest ")[0].splitlines()]
    assert len(report.kernels) <= 2 and len(statements) < 8 * 2**depth
    assert sum("= sigmoid" in s for s in statements) < 2**depth


def shared(a, b):
    go, high = a.sigmoid(), b.exp().clamp(max=3)
    inner = torch.stack([go * b, (1 - go) * b], 1) * high.unsqueeze(1)
    return torch.stack([inner, torch.stack([go, b], 1)], -1)


@pytest.mark.broad(4)
@pytest.mark.parametrize("shape", [(7, 13), (1, 1), (0, 5), (3, 1031)])
def test_stacks_of_stacks_of_other_sizes_and_orders(shape):
    for dtype in (torch.float32, torch.float64):
        a, b = (torch.randn(shape, dtype=dtype) for _ in range(2))
        assert_as_eager(shared, a.requires_grad_(), b.requires_grad_())
        assert_as_eager(shared, a.detach().t(), b.detach().t())


def dear(x, y):
    parts = [torch.tanh(x) * y.sin(), torch.erf(y).exp(), x.atan(), torch.tanh(y) + x.cos()]
    return torch.cat(parts, 1) * 2


def test_dear_pieces_are_computed_once():
    x, y = torch.randn(40, 50), torch.randn(40, 50)
    assert_as_eager(dear, x, y)
    report = tofuse.explain(dear)(x, y)
    refused = [v.rule for v in report.verdicts if not v.fused]
    assert refused and all("would compute all operands" in rule for rule in refused)

    def asked(x, y):
        with tofuse.fuse():
            return dear(x, y)

    assert len(kernels(asked, x, y)) == 1
    assert_as_eager(asked, x, y)


def many(x, w):
    pieces = [p.tanh() * k if k % 2 else p + w for k, p in enumerate(x.split(3, 1))]
    return F.layer_norm(torch.cat(pieces, 1), (x.shape[1],))


def test_many_pieces_are_joined_by_a_copy():
    x, w = torch.randn(6, 42, requires_grad=True), torch.randn(3, requires_grad=True)
    assert_as_eager(many, x, w)
    report = tofuse.explain(many)(x.detach(), w.detach())
    assert [c.name for c in report.library_calls] == ["aten.cat.default"]
    assert "a cat of many operands is a call" in {v.rule for v in report.verdicts}
