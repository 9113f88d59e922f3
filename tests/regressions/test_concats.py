"""cat, stack and pad of computed values: fused if that is cheap, else rejected with a reason."""

import pytest
import torch
import torch.nn.functional as F

import tofuse
from tests.support.eager import assert_as_eager, kernel_names

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def rope(q, cos, sin):
    half = q.shape[-1] // 2
    rotated = torch.cat((-q[..., half:], q[..., :half]), -1)
    return q * cos + rotated * sin


@pytest.mark.parametrize("width", [2, 10, 64])
def test_rotary_embedding_is_one_kernel(width):
    tables = torch.randn(7, width), torch.randn(7, width)
    q = torch.randn(2, 3, 7, width, requires_grad=True)
    assert_as_eager(rope, q, *tables)
    assert len(kernel_names(rope, q.detach(), *tables)) == 1


CONCATS = {
    "rows": (1, lambda x, y: torch.cat([x.sin(), y * 2, x.exp()], 0).sum(1)),
    "a norm": (1, lambda x, y: torch.cat([x.sin(), y * 2, x], 1).softmax(1)),
    "padding": (1, lambda x, y: F.pad(x * y, (1, 2, 0, 1)) + 1),
    "nested": (1, lambda x, y: torch.cat([torch.cat([x * 2, y], 0) + 1, y.sin()], 0)),
    "interleaved": (1, lambda x, y: torch.stack([x.sin(), y.cos()], -1).flatten(1)),
    "operand used elsewhere": (1, lambda x, y: (torch.cat([x.sin(), y * x.sin()], 1), x.sin() * 3)),
    "reshaped": (2, lambda x, y: torch.cat([x.relu().flatten(), y.flatten() * 2]).view(2, -1)),
}


@pytest.mark.parametrize("name", CONCATS)
def test_concats_of_computed_values(name):
    count, fn = CONCATS[name]
    for shape in ((5, 7), (1, 1), (33, 64)):
        x, y = (torch.randn(shape, requires_grad=True) for _ in range(2))
        assert_as_eager(fn, x, y, rtol=1e-4, atol=1e-5, calls=1)
    report = tofuse.explain(fn)(torch.randn(33, 64), torch.randn(33, 64))
    assert len(report.kernels) == count
    if count > 1:
        rules = " ".join(v.rule for v in report.verdicts if not v.fused)
        assert "written directly into the cat" in rules


def soft_tree(x, depth):
    """Return the product of decisions along each path of a tree, as nested stacks."""
    paths = torch.ones(len(x), 1)
    for level in range(depth):
        go = x[:, 2**level - 1 : 2 ** (level + 1) - 1].sigmoid()
        paths = torch.stack([paths * go, paths * (1 - go)], -1).flatten(1)
    return paths


@pytest.mark.parametrize("depth", [2, 4, 5, 6])
def test_common_values_of_stack_operands_are_computed_once(depth):
    x = torch.randn(33, 2**depth - 1, requires_grad=True)
    assert_as_eager(soft_tree, x, depth)
    report = tofuse.explain(soft_tree)(x.detach(), depth)
    statements = [s for k in report.kernels for s in k.loops.partition("nest ")[0].splitlines()]
    assert len(report.kernels) <= 2 and len(statements) < 8 * 2**depth
    assert sum("= sigmoid" in s for s in statements) < 2**depth


def nested_stacks(a, b):
    go, high = a.sigmoid(), b.exp().clamp(max=3)
    inner = torch.stack([go * b, (1 - go) * b], 1) * high.unsqueeze(1)
    return torch.stack([inner, torch.stack([go, b], 1)], -1)


@pytest.mark.broad(4)
@pytest.mark.parametrize("shape", [(7, 13), (1, 1), (0, 5), (3, 1031)])
def test_nested_stacks_of_various_shapes_and_strides(shape):
    for dtype in (torch.float32, torch.float64):
        a, b = (torch.randn(shape, dtype=dtype) for _ in range(2))
        assert_as_eager(nested_stacks, a.requires_grad_(), b.requires_grad_())
        assert_as_eager(nested_stacks, a.detach().t(), b.detach().t())


def expensive(x, y):
    operands = [torch.tanh(x) * y.sin(), torch.erf(y).exp(), x.atan(), torch.tanh(y) + x.cos()]
    return torch.cat(operands, 1) * 2


def test_expensive_operands_are_computed_once():
    x, y = torch.randn(40, 50), torch.randn(40, 50)
    assert_as_eager(expensive, x, y)
    report = tofuse.explain(expensive)(x, y)
    rejections = [v.rule for v in report.verdicts if not v.fused]
    assert rejections and all("would compute all operands" in rule for rule in rejections)

    def forced(x, y):
        with tofuse.fuse():
            return expensive(x, y)

    assert len(kernel_names(forced, x, y)) == 1
    assert_as_eager(forced, x, y)


def concat_of_many(x, w):
    operands = [p.tanh() * k if k % 2 else p + w for k, p in enumerate(x.split(3, 1))]
    return F.layer_norm(torch.cat(operands, 1), (x.shape[1],))


def test_concat_of_many_operands_is_a_library_call():
    x, w = torch.randn(6, 42, requires_grad=True), torch.randn(3, requires_grad=True)
    assert_as_eager(concat_of_many, x, w)
    report = tofuse.explain(concat_of_many)(x.detach(), w.detach())
    assert [c.name for c in report.library_calls] == ["aten.cat.default"]
    assert "a cat of many operands is a call" in {v.rule for v in report.verdicts}
