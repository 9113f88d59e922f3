"""Sizes that vary become symbols at their second value: no more programs than with aot_eager."""

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters

import tofuse

Model = Callable[[Tensor], Tensor]


class Skip(nn.Module):
    """Two scales that a skip connection joins, as in a U-Net."""

    def __init__(self, mode: str, norm: nn.Module) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 1, 1)
        self.last, self.norm, self.mode = nn.Conv2d(16, 4, 1), norm, mode

    def forward(self, x: Tensor) -> Tensor:
        a = F.silu(self.norm(self.first(x)))
        b = F.silu(self.norm(self.second(F.avg_pool2d(a, 2))))
        b = F.interpolate(b, scale_factor=2, mode=self.mode)
        result: Tensor = self.last(torch.cat([b, a], 1))
        return result


class Broken(nn.Module):
    """A graph break between two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 1), nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        a = F.gelu(self.first(x))
        torch._dynamo.graph_break()
        result: Tensor = self.second(a).mean((2, 3))
        return result


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        words = x.flatten(2).transpose(1, 2).repeat(1, 1, 4)
        result: Tensor = self.inner(words, words, words)[0]
        return result


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(
            [F.adaptive_avg_pool2d(x, 2).flatten(1), F.max_pool2d(x, 2).amax((2, 3))], 1
        )


def sum_of_neighbours(x: Tensor) -> Tensor:
    return F.pad(x, (1, 1))[..., 2:] + x.roll(1, 0)


MODELS: dict[str, Callable[[], Model]] = {
    "nearest, group norm": lambda: Skip("nearest", nn.GroupNorm(2, 8)),
    "bilinear, batch norm": lambda: Skip("bilinear", nn.BatchNorm2d(8)),
    "bicubic, instance norm": lambda: Skip("bicubic", nn.InstanceNorm2d(8)),
    "graph break": Broken,
    "attention": Attention,
    "pooling": Pooled,
    "neighbours": lambda: sum_of_neighbours,
}
BATCHES = (2, 4, 6, 3, 9, 5, 4)


def programs(compiled: Model, eager: Model, images: list[Tensor], *, training: bool) -> int:
    """Return how many programs the calls compile; compare results and gradients with eager's."""
    counters.clear()
    for image in images:
        found, expected = image.clone(), image.clone()
        if training:
            found.requires_grad_()
            expected.requires_grad_()
        with torch.set_grad_enabled(training):
            a, b = compiled(found), eager(expected)
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        if training:
            a.square().mean().backward()
            b.square().mean().backward()
            torch.testing.assert_close(found.grad, expected.grad, rtol=1e-3, atol=1e-4)
    return counters["stats"]["unique_graphs"]


def compare(
    name: str, images: list[Tensor], more: int = 0, *, training: bool, **options: bool
) -> None:
    torch.manual_seed(0)
    eager = MODELS[name]()
    torch.compiler.reset()
    theirs = programs(torch.compile(eager, backend="aot_eager"), eager, images, training=training)
    torch.compiler.reset()
    ours = programs(tofuse.compile(eager, **options), eager, images, training=training)
    assert ours <= theirs + more, f"{ours} programs, and {theirs} with aot_eager"


@pytest.mark.broad(4)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_no_more_programs_than_with_aot_eager(name, training):
    images = [torch.randn(n, 4, 8, 8) for n in BATCHES]
    compare(name, images, training=training, hand_back=False)


@pytest.mark.parametrize("name", ["nearest, group norm", "graph break"])
def test_calls_handed_back_count_as_well(name):
    compare(name, [torch.randn(n, 4, 8, 8) for n in BATCHES], training=False)


@pytest.mark.parametrize("name", MODELS)
def test_at_most_one_more_program_for_any_sizes(name, request):
    draw = random.Random(0)
    count = 100 if request.config.getoption("--full") else 6
    sizes = [[draw.randint(2, 40), *(2 * draw.randint(2, 20) for _ in "hw")] for _ in range(count)]
    images = [torch.randn(n, 4, height, width) for n, height, width in sizes]
    compare(name, images, 1, training=True, hand_back=False)


def of_a_piece(x: Tensor) -> tuple[Tensor, Tensor]:
    piece = x.unflatten(-1, (-1, 2)).reshape(-1).permute(0).tensor_split(3, 0)[1]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return piece.view_as(piece), torch.tensor(3) + piece.select(0, 0)


def test_returned_views_of_an_argument_with_an_offset_lie_where_eagers_do():
    compiled = tofuse.compile(of_a_piece, dynamic=True, hand_back=False)
    for size in (3, 33, 2):
        x = (torch.rand(size + 1, 3, 2) > 0.5)[1:]
        (ours, _), (theirs, _) = compiled(x), of_a_piece(x)
        assert torch.equal(ours, theirs) and ours.storage_offset() == theirs.storage_offset()
