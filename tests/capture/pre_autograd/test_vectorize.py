"""Branches that do the same to pieces of a tensor are computed side by side, and are as eager's."""

from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tofuse
from tofuse.capture.pre_autograd import vectorize
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


def best(x: Tensor) -> Tensor:
    value, _ = F.linear(x, UP.weight, UP.bias).max(-1)
    return value


def in_turn(x: Tensor) -> Tensor:
    held, all_of_them = torch.zeros(5, 12), []
    for t in range(x.shape[1]):
        held = torch.tanh(mlp(x[:, t]) + held)
        all_of_them.append(held)
    return torch.stack(all_of_them, 1)


def also_alone(x: Tensor) -> tuple[Tensor, Tensor]:
    made = [mlp(x[:, t]) for t in range(4)]
    return torch.stack(made, 1), made[2] * 2


def written_between(x: Tensor) -> Tensor:
    x = x.clone()
    made = [torch.tanh(x[:, t] * 2) @ MANY[0].detach() for t in range(9)]
    x.add_(1)
    return torch.stack(made, 1) + x.sum()


def written_pieces(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x * 1.5
    made = [F.relu(x[:, t], inplace=True) @ MANY[0].detach() for t in range(4)]
    return torch.stack(made, 1), x


def around(x: Tensor) -> Tensor:
    mean = x.mean(1)
    return torch.stack([mlp(x[:, t] - mean) for t in range(x.shape[1])], 1) + mean[:, None]


def twice(x: Tensor) -> Tensor:
    first = torch.stack([mlp(x[:, t]) for t in range(3)], 1)
    return torch.stack([UP(first[:, t]) for t in range(3)], 1)


def other(x: Tensor) -> Tensor:
    return torch.stack([mlp(x[:, t]) if t != 2 else mlp(-x[:, t]) for t in range(5)], 1)


Case = tuple[Callable[..., object], tuple[int, ...]]
BESIDE: dict[str, Case] = {
    "steps": (lambda x: torch.stack([mlp(x[:, t]) for t in range(9)], 1), (5, 9, 12)),
    "rows": (lambda x: torch.stack([mlp(r) for r in x]), (9, 5, 12)),
    "last dimension": (lambda x: torch.stack([mlp(x[:, t]) for t in range(9)], -1), (5, 9, 12)),
    "chunks": (lambda x: torch.cat([mlp(c) for c in x.chunk(3, 1)], 1), (5, 9, 12)),
    "split": (lambda x: torch.cat([F.relu(c @ MANY[0].T) + c for c in x.split(2)]), (8, 12)),
    "some": (lambda x: torch.stack([mlp(x[:, t]) for t in range(2, 7)], 1), (5, 9, 12)),
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
    "indices": (lambda x: torch.stack([best(x[:, t]) for t in range(5)], 1), (5, 5, 12)),
    "numbers": (lambda x: torch.stack([mlp(x[:, t]).square().sum() for t in range(9)]), (5, 9, 12)),
    "no kernels alone": (
        lambda x: torch.stack([torch.tanh(NORM(p)) for p in x.split(2)]),
        (32, 12),
    ),
    "in two": (
        lambda x: torch.stack(
            [torch.cat([mlp(c) for c in x[:, t].chunk(2)]) for t in range(4)],
            1,
        ),
        (6, 4, 12),
    ),
    "none": (lambda x: torch.stack([mlp(x[:, t]) for t in range(4)], 1), (0, 4, 12)),
    "around": (around, (5, 9, 12)),
    "twice": (twice, (5, 3, 12)),
}
APART: dict[str, Case] = {
    "uneven": (lambda x: torch.cat([mlp(c) for c in x.split(2)]), (9, 12)),
    "in turn": (in_turn, (5, 9, 12)),
    "also alone": (also_alone, (5, 9, 12)),
    "another": (other, (5, 5, 12)),
    "out of order": (lambda x: torch.stack([mlp(x[:, t]) for t in (2, 1, 0)], 1), (5, 3, 12)),
    "random": (
        lambda x: torch.stack([F.dropout(mlp(x[:, t]), 1.0) for t in range(4)], 1),
        (5, 4, 12),
    ),
}


def tensors(made: object) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def gradients(made: object, x: Tensor) -> Sequence[Tensor]:
    """With regard to the argument and all parameters."""
    losses = [(o * torch.arange(o.numel()).view(o.shape).cos()).sum() for o in tensors(made)]
    return torch.autograd.grad(losses, [x, *PARAMETERS], allow_unused=True)


def assert_alike(made: object, expected: object) -> None:
    for t, want in zip(tensors(made), tensors(expected), strict=True):
        torch.testing.assert_close(t, want, atol=2e-5, rtol=2e-4)
        assert t.stride() == want.stride()


@pytest.mark.parametrize("name", [*BESIDE, *APART])
def test_as_eager(name: str):
    f, shape = (BESIDE | APART)[name]
    x = torch.randn(shape, requires_grad=True)
    compiled, report = compile_reporting(f, make_config({"strict": True}))
    made, expected = compiled(x), f(x)
    assert_alike(made, expected)
    assert any("side by side" in note for note in report.notes) == (name in BESIDE)
    for found, want in zip(gradients(made, x), gradients(expected, x), strict=True):
        assert (want is None) == (found is None)
        if want is not None:
            torch.testing.assert_close(found, want, atol=2e-4, rtol=2e-3)
    with torch.no_grad():
        assert_alike(compiled(x), expected)


@pytest.mark.parametrize("f", [written_between, written_pieces])
def test_what_is_written_is_read_in_time(f: Callable[..., object]):
    x = torch.randn(5, 9, 12)
    with torch.no_grad():
        assert_alike(tofuse.compile(f, strict=True)(x), f(x))


@pytest.mark.parametrize("count, joined", [(8, torch.stack), (7, torch.cat), (3, torch.stack)])
def test_no_more_are_computed_at_once_than_eager_has_memory_for(
    count: int, joined: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
):
    """Groups of branches, one after the other; with gradients, where eager holds all, one."""
    monkeypatch.setattr(vectorize, "SPARE", 80_000)

    def frames(x: Tensor) -> Tensor:
        return joined([PICTURES(x[:, t]) for t in range(count)], 1)

    x = torch.randn(2, count, 3, 32, 32)  # 74 KB each, with a convolution's results
    compiled, report = compile_reporting(frames, make_config({"strict": True}))
    with torch.no_grad():
        assert_alike(compiled(x), frames(x))
    counts = [int(note.split()[0]) for note in report.notes if "side by side" in note]
    assert counts == [2] * (count // 2)
    x.requires_grad_()
    compiled, report = compile_reporting(frames, make_config({"strict": True}))
    assert_alike(compiled(x), frames(x))
    (note,) = [note for note in report.notes if "side by side" in note]
    assert note.startswith(f"{count} branches")


def test_calls_that_one_stands_for_are_counted():
    def branches(x: Tensor) -> Tensor:
        return torch.stack([torch.relu(x[:, t] @ MANY[0]) for t in range(6)], 1)

    with torch.no_grad():
        report = tofuse.explain(branches)(torch.randn(5, 6, 12))
    assert report.launches_before >= 12
    assert report.launches_after <= 3
