"""Vectorization of isomorphic branches on slices of a tensor: results and gradients match eager."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tofuse
from tofuse.config import make_config
from tofuse.driver.compile import compile_reporting

torch.manual_seed(3)
UP, DOWN, NORM = nn.Linear(12, 20), nn.Linear(20, 12), nn.LayerNorm(12)
TABLE = nn.Embedding(30, 12)
PICTURES = nn.Sequential(
    nn.Conv2d(3, 6, 3, padding=1),
    nn.ReLU(inplace=True),
    nn.MaxPool2d(2),
    nn.Conv2d(6, 6, 3),
    nn.GroupNorm(2, 6),
    nn.ReLU(inplace=True),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
)
MANY = nn.Parameter(torch.randn(9, 12, 12))
PARAMETERS = [*(p for m in (UP, DOWN, NORM, TABLE, PICTURES) for p in m.parameters()), MANY]


def mlp(x: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, UP.weight, UP.bias)), DOWN.weight, DOWN.bias)


def attend(x: Tensor) -> Tensor:
    return F.softmax(x @ x.transpose(1, 2) / 2, -1) @ x


def gated(x: Tensor) -> Tensor:
    a, b = F.linear(x, UP.weight, UP.bias).chunk(2, -1)
    return torch.mul(a, torch.sigmoid(b))


def row_maxima(x: Tensor) -> Tensor:
    value, _ = F.linear(x, UP.weight, UP.bias).max(-1)
    return value


def recurrent(x: Tensor) -> Tensor:
    state, states = torch.zeros(5, 12), []
    for t in range(x.shape[1]):
        state = torch.tanh(mlp(x[:, t]) + state)
        states.append(state)
    return torch.stack(states, 1)


def reads_one_branch(x: Tensor) -> tuple[Tensor, Tensor]:
    branches = [mlp(x[:, t]) for t in range(4)]
    return torch.stack(branches, 1), branches[2] * 2


def writes_after_reads(x: Tensor) -> Tensor:
    x = x.clone()
    branches = [torch.tanh(x[:, t] * 2) @ MANY[0].detach() for t in range(9)]
    x.add_(1)
    return torch.stack(branches, 1) + x.sum()


def writes_slices(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x * 1.5
    branches = [F.relu(x[:, t], inplace=True) @ MANY[0].detach() for t in range(4)]
    return torch.stack(branches, 1), x


def shared_mean(x: Tensor) -> Tensor:
    mean = x.mean(1)
    return torch.stack([mlp(x[:, t] - mean) for t in range(x.shape[1])], 1) + mean[:, None]


def two_stacks(x: Tensor) -> Tensor:
    first = torch.stack([mlp(x[:, t]) for t in range(3)], 1)
    return torch.stack([UP(first[:, t]) for t in range(3)], 1)


def less_the_first(x: Tensor) -> Tensor:
    first = x[0]  # the slice of the first branch, and an operand of all
    return torch.stack([mlp(x[k] - first if k else first - first) for k in range(4)])


def first_squared(x: Tensor) -> Tensor:
    y, first = x * 2, x[0]  # both operands of the first product are slices of x
    return torch.stack([mlp(y[k] * x[k] if k else first * first) for k in range(4)])


def one_differs(x: Tensor) -> Tensor:
    return torch.stack([mlp(x[:, t]) if t != 2 else mlp(-x[:, t]) for t in range(5)], 1)


Case = tuple[Callable[..., object], tuple[int, ...]]
VECTORIZED: dict[str, Case] = {
    "steps": (lambda x: torch.stack([mlp(x[:, t]) for t in range(9)], 1), (5, 9, 12)),
    "rows": (lambda x: torch.stack([mlp(r) for r in x]), (9, 5, 12)),
    "last dimension": (lambda x: torch.stack([mlp(x[:, t]) for t in range(9)], -1), (5, 9, 12)),
    "chunks": (lambda x: torch.cat([mlp(c) for c in x.chunk(3, 1)], 1), (5, 9, 12)),
    "split": (lambda x: torch.cat([F.relu(c @ MANY[0].T) + c for c in x.split(2)]), (8, 12)),
    "a range of steps": (lambda x: torch.stack([mlp(x[:, t]) for t in range(2, 7)], 1), (5, 9, 12)),
    "from the end": (lambda x: torch.stack([mlp(x[:, t]) for t in range(-4, 0)], 1), (5, 9, 12)),
    "slices": (
        lambda x: torch.cat([NORM(x[..., k : k + 12]) @ MANY[1] for k in (0, 12, 24)], -1),
        (3, 4, 36),
    ),
    "narrow": (lambda x: torch.cat([mlp(x.narrow(0, 2 * k, 2)) for k in range(4)]), (8, 12)),
    "select": (lambda x: torch.stack([mlp(x.select(-2, k)) for k in range(4)]), (5, 4, 12)),
    "weights": (lambda x: torch.stack([F.silu(x @ MANY[k]) for k in range(9)], 1), (5, 12)),
    "heads": (lambda x: torch.cat([attend(h) for h in x.split(4, -1)], -1), (2, 7, 12)),
    "frames": (lambda x: torch.stack([PICTURES(x[:, t]) for t in range(4)], 1), (2, 4, 3, 8, 8)),
    "images": (lambda x: torch.cat([PICTURES(f) for f in x.split(2)]), (8, 3, 8, 8)),
    "gates": (lambda x: torch.stack([gated(x[:, t]) for t in range(3)], 1), (5, 3, 12)),
    "indices": (lambda x: torch.stack([row_maxima(x[:, t]) for t in range(5)], 1), (5, 5, 12)),
    "numbers": (lambda x: torch.stack([mlp(x[:, t]).square().sum() for t in range(9)]), (5, 9, 12)),
    "no library calls": (
        lambda x: torch.stack([torch.tanh(NORM(p)) for p in x.split(2)]),
        (32, 12),
    ),
    "nested chunks": (
        lambda x: torch.stack(
            [torch.cat([mlp(c) for c in x[:, t].chunk(2)]) for t in range(4)],
            1,
        ),
        (6, 4, 12),
    ),
    "empty": (lambda x: torch.stack([mlp(x[:, t]) for t in range(4)], 1), (0, 4, 12)),
    "one row": (lambda x: torch.stack([mlp(x[:, t]) for t in range(4)], 1), (1, 4, 12)),
    "one row joined": (lambda x: torch.cat([mlp(x[:, t]) for t in range(4)], 1), (1, 4, 12)),
    "shared operand": (shared_mean, (5, 9, 12)),
    "two stacks": (two_stacks, (5, 3, 12)),
    "less the first": (less_the_first, (4, 5, 12)),
    "every other row": (lambda x: torch.cat([mlp(x[k : k + 4 : 2]) for k in (0, 4, 8)]), (12, 12)),
}
NOT_VECTORIZED: dict[str, Case] = {
    "uneven": (lambda x: torch.cat([mlp(c) for c in x.split(2)]), (9, 12)),
    "recurrence": (recurrent, (5, 9, 12)),
    "one branch read": (reads_one_branch, (5, 9, 12)),
    "first squared": (first_squared, (4, 5, 12)),
    "one differs": (one_differs, (5, 5, 12)),
    "out of order": (lambda x: torch.stack([mlp(x[:, t]) for t in (2, 1, 0)], 1), (5, 3, 12)),
    "random": (
        lambda x: torch.stack([F.dropout(mlp(x[:, t]), 1.0) for t in range(4)], 1),
        (5, 4, 12),
    ),
}


def tensors(results: object) -> tuple[Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def gradients(results: object, x: Tensor) -> Sequence[Tensor]:
    """Return the gradients of the argument and of all parameters."""
    losses = [(o * torch.arange(o.numel()).view(o.shape).cos()).sum() for o in tensors(results)]
    return torch.autograd.grad(losses, [x, *PARAMETERS], allow_unused=True)


def assert_alike(results: object, expected: object) -> None:
    for t, want in zip(tensors(results), tensors(expected), strict=True):
        torch.testing.assert_close(t, want, atol=2e-5, rtol=2e-4)
        assert t.stride() == want.stride()


@pytest.mark.parametrize("name", [*VECTORIZED, *NOT_VECTORIZED])
def test_results_and_gradients_match_eager(name: str):
    f, shape = (VECTORIZED | NOT_VECTORIZED)[name]
    x = torch.randn(shape, requires_grad=True)
    compiled, report = compile_reporting(f, make_config({"strict": True}))
    results, expected = compiled(x), f(x)
    assert_alike(results, expected)
    assert any("vectorized" in note for note in report.notes) == (name in VECTORIZED)
    for found, want in zip(gradients(results, x), gradients(expected, x), strict=True):
        assert (want is None) == (found is None)
        if want is not None:
            torch.testing.assert_close(found, want, atol=2e-4, rtol=2e-3)
    with torch.no_grad():
        assert_alike(compiled(x), expected)


@pytest.mark.parametrize("f", [writes_after_reads, writes_slices])
def test_writes_into_the_source_are_ordered(f: Callable[..., object]):
    x = torch.randn(5, 9, 12)
    with torch.no_grad():
        assert_alike(tofuse.compile(f, strict=True)(x), f(x))


@pytest.mark.parametrize("count, concat", [(8, torch.stack), (7, torch.cat), (3, torch.stack)])
def test_vector_width_is_limited_by_eagers_memory(count: int, concat: Callable[..., Tensor]):
    """Branches run in groups; with gradients, where eager holds all, in one group."""

    def frames(x: Tensor) -> Tensor:
        return concat([PICTURES(x[t]) for t in range(count)], 1)

    x = torch.randn(count, 26, 3, 32, 32)  # 0.96 MB each, with a convolution's results
    compiled, report = compile_reporting(frames, make_config({"strict": True}))
    with torch.no_grad():
        assert_alike(compiled(x), frames(x))
    counts = [int(note.split()[0]) for note in report.notes if "vectorized" in note]
    assert counts == [2] * (count // 2)
    x.requires_grad_()
    compiled, report = compile_reporting(frames, make_config({"strict": True}))
    assert_alike(compiled(x), frames(x))
    (note,) = [note for note in report.notes if "vectorized" in note]
    assert note.startswith(f"{count} isomorphic branches")


def test_vectorized_calls_are_counted_one_by_one():
    def branches(x: Tensor) -> Tensor:
        return torch.stack([torch.relu(x[:, t] @ MANY[0]) for t in range(6)], 1)

    with torch.no_grad():
        report = tofuse.explain(branches)(torch.randn(5, 6, 12))
    assert report.launches_before >= 12
    assert report.launches_after <= 3
