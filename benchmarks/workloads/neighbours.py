"""Programs that read a neighbour: stencils, convolutions, recurrences and sums by segment."""

from collections.abc import Mapping, Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.seeds import Inputs, Program, Size
from benchmarks.workloads.base import InputMaker, Workload, calls


def grids(count: int, full: Sequence[int], small: Sequence[int], grad: bool = False) -> InputMaker:
    """Return a function that makes uniform tensors of a grid's shape."""

    def make(size: Size, dtype: torch.dtype) -> Inputs:
        shape = tuple(full if size == "full" else small)
        fields = (torch.rand(shape).to(dtype) for _ in range(count))
        return tuple(field.requires_grad_(grad and dtype.is_floating_point) for field in fields)

    return make


def heat(steps: int) -> Program:
    """Return steps of the heat equation in two dimensions; the edge keeps its values."""

    def program(u: Tensor) -> Tensor:
        for _ in range(steps):
            inner = u[1:-1, 1:-1]
            around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
            u = F.pad(inner + 0.1 * (around - 4 * inner), (1, 1, 1, 1))
        return u

    return program


def heat_line(u: Tensor) -> Tensor:
    """Four steps of the heat equation of every row."""
    for _ in range(4):
        u = u + 0.1 * (u.roll(1, -1) + u.roll(-1, -1) - 2 * u)
    return u


def heat_volume(u: Tensor) -> Tensor:
    """Two steps of the heat equation in three dimensions, by shifted slices of a padded field."""
    for _ in range(2):
        p = F.pad(u[None, None], (1,) * 6, mode="replicate")[0, 0]
        inner = p[1:-1, 1:-1, 1:-1]
        around = p[2:, 1:-1, 1:-1] + p[:-2, 1:-1, 1:-1] + p[1:-1, 2:, 1:-1]
        around = around + p[1:-1, :-2, 1:-1] + p[1:-1, 1:-1, 2:] + p[1:-1, 1:-1, :-2]
        u = u + 0.1 * (around - 6 * inner)
    return u


def laplace(u: Tensor) -> Tensor:
    """Return the five-point Laplacian of a periodic field."""
    return u.roll(1, 0) + u.roll(-1, 0) + u.roll(1, 1) + u.roll(-1, 1) - 4 * u


def wave(u: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Two steps of the wave equation on a periodic field."""
    for _ in range(2):
        u, before = 2 * u - before + 0.25 * laplace(u), u
    return u, before


def gray_scott(steps: int) -> Program:
    """Return steps of the reaction and diffusion of two periodic fields."""

    def program(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(steps):
            uvv = u * v * v
            u = u + 0.1 * (0.16 * laplace(u) - uvv + 0.04 * (1 - u))
            v = v + 0.1 * (0.08 * laplace(v) + uvv - 0.1 * v)
        return u, v

    return program


def life(cells: Tensor) -> Tensor:
    """Two generations of the game of life on a torus."""
    for _ in range(2):
        rows = cells.roll(1, 0) + cells + cells.roll(-1, 0)
        count = rows.roll(1, 1) + rows + rows.roll(-1, 1) - cells
        cells = ((count == 3) | ((count == 2) & (cells == 1))).to(cells.dtype)
    return cells


DIRECTIONS = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1))
WEIGHTS = (4 / 9,) + (1 / 9,) * 4 + (1 / 36,) * 4


def lattice_boltzmann(f: Tensor) -> Tensor:
    """One step of the lattice Boltzmann method with nine velocities."""
    density = f.sum(0)
    x = sum(c[0] * f[k] for k, c in enumerate(DIRECTIONS) if c[0]) / density
    y = sum(c[1] * f[k] for k, c in enumerate(DIRECTIONS) if c[1]) / density
    moved = []
    for k, (a, b) in enumerate(DIRECTIONS):
        along = a * x + b * y
        speed = 1 + 3 * along + 4.5 * along * along - 1.5 * (x * x + y * y)
        rest = WEIGHTS[k] * density * speed
        moved.append((f[k] - (f[k] - rest) / 0.6).roll((a, b), (0, 1)))
    return torch.stack(moved)


def sobel(image: Tensor) -> Tensor:
    """Return the magnitude of the Sobel gradient of an image, its edges replicated."""
    p = F.pad(image[None, None], (1, 1, 1, 1), mode="replicate")[0, 0]
    left, right = p[:, :-2], p[:, 2:]
    dx = (right - left)[:-2] + 2 * (right - left)[1:-1] + (right - left)[2:]
    sums = left + 2 * p[:, 1:-1] + right
    return (dx.square() + (sums[2:] - sums[:-2]).square()).sqrt()


def gaussian(image: Tensor) -> Tensor:
    """Return an image blurred by five taps along rows, then along columns."""
    taps = (0.0625, 0.25, 0.375, 0.25, 0.0625)
    p = F.pad(image[None, None], (2, 2, 2, 2), mode="reflect")[0, 0]
    across = [w * p[:, k : k + image.shape[1]] for k, w in enumerate(taps)]
    rows = reduce(torch.add, across)
    return reduce(torch.add, [w * rows[k : k + image.shape[0]] for k, w in enumerate(taps)])


def local_statistics(image: Tensor) -> Tensor:
    """Return an image with the mean and deviation of its 5 x 5 neighbourhoods removed."""
    mean = F.avg_pool2d(image[None], 5, 1, 2, count_include_pad=False)[0]
    square = F.avg_pool2d((image * image)[None], 5, 1, 2, count_include_pad=False)[0]
    return (image - mean) * (square - mean * mean + 1e-3).rsqrt()


def curvature(u: Tensor) -> Tensor:
    """Return the divergence of the normalized gradient of a field."""
    dy, dx = torch.gradient(u)
    norm = (dx * dx + dy * dy + 1e-3).rsqrt()
    return torch.gradient(dx * norm, dim=1)[0] + torch.gradient(dy * norm, dim=0)[0]


def integral_image(image: Tensor) -> Tensor:
    """Return the sums of 16 x 16 boxes by an integral image."""
    total = image.cumsum(0).cumsum(1)
    return total[16:, 16:] - total[:-16, 16:] - total[16:, :-16] + total[:-16, :-16]


def rwkv(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor) -> Tensor:
    """Return the outputs of RWKV's recurrence, its loop over time written in Python."""
    batch, steps, heads, width = r.shape
    state, outputs = r.new_zeros(batch, heads, width, width), []
    for t in range(steps):
        kv = k[:, t].unsqueeze(-1) * v[:, t].unsqueeze(-2)
        outputs.append((r[:, t].unsqueeze(-1) * (state + u * kv)).sum(-2))
        state = state * torch.exp(-torch.exp(w[:, t])).unsqueeze(-1) + kv
    return torch.stack(outputs, 1)


def rwkv_inputs(steps: int, grad: bool = False) -> InputMaker:
    def make(size: Size, dtype: torch.dtype) -> Inputs:
        batch, length, width = (8, steps, 32) if size == "full" else (2, 3, 4)
        shape = (batch, length, 4, width)
        fields = (torch.randn(shape).to(dtype).requires_grad_(grad) for _ in range(4))
        return (*fields, torch.randn(4, width, 1).to(dtype))

    return make


def low_pass(x: Tensor) -> Tensor:
    """Return every row filtered by a first-order recurrence over 64 steps."""
    y, outputs = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        y = 0.9 * y + 0.1 * x[:, t]
        outputs.append(y)
    return torch.stack(outputs, 1)


def hidden_markov(scores: Tensor, moves: Tensor) -> Tensor:
    """Return the log-likelihood of 32 steps of a hidden Markov model."""
    state = scores[:, 0]
    for t in range(1, scores.shape[1]):
        state = torch.logsumexp(state[:, :, None] + moves, 1) + scores[:, t]
    return torch.logsumexp(state, -1)


def markov_inputs(size: Size, dtype: torch.dtype) -> Inputs:
    batch, steps, states = (256, 32, 32) if size == "full" else (3, 3, 4)
    return torch.randn(batch, steps, states).to(dtype), torch.randn(states, states).to(dtype)


CUMULATIVE: dict[str, Program] = {
    "cumsum_rows": lambda x: x.cumsum(-1),
    "cumsum_columns": lambda x: x.cumsum(0),
    "cumsum_scaled": lambda x: (x * 0.5 + 1).cumsum(-1) * 2,
    "cumprod_rows": lambda x: (x * 0.01 + 1).cumprod(-1),
    "logcumsumexp_rows": lambda x: x.logcumsumexp(-1),
    "cummax_rows": lambda x: x.cummax(-1).values,
}


def grouped(is_sorted: bool, ending: Sequence[int] = (64,)) -> InputMaker:
    """Return a function that makes rows, the group of each row, and a zero for each group."""

    def make(size: Size, dtype: torch.dtype) -> Inputs:
        rows, groups = (200_000, 2_000) if size == "full" else (37, 5)
        keys = torch.randint(groups, (rows,))
        keys = keys.sort().values if is_sorted else keys
        return torch.randn(rows, *ending).to(dtype), keys, torch.zeros(groups, *ending, dtype=dtype)

    return make


def group_sum(x: Tensor, keys: Tensor, zero: Tensor) -> Tensor:
    return zero.index_add(0, keys, x)


def group_max(x: Tensor, keys: Tensor, zero: Tensor) -> Tensor:
    index = keys[:, None].expand_as(x)
    return zero.scatter_reduce(0, index, x, "amax", include_self=False)


def group_statistics(x: Tensor, keys: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance of each group."""
    count = torch.bincount(keys, minlength=zero.shape[0]).clamp(min=1).to(x.dtype)[:, None]
    mean = zero.index_add(0, keys, x) / count
    return mean, zero.index_add(0, keys, x * x) / count - mean * mean


def histogram(x: Tensor, keys: Tensor, zero: Tensor) -> Tensor:
    return torch.bincount(keys, weights=x * x, minlength=zero.shape[0])


def quantized(x: Tensor, keys: Tensor, zero: Tensor) -> Tensor:
    return torch.bucketize(x * 2 + 1, torch.linspace(-3, 3, 15))


def interpolated(x: Tensor, keys: Tensor, zero: Tensor) -> Tensor:
    """Return a piecewise linear function of `x`, by binary search."""
    knots = torch.linspace(-3, 3, 64, dtype=x.dtype)
    values = knots.sin()
    k = torch.searchsorted(knots, x).clamp(1, 63)
    left, right = knots[k - 1], knots[k]
    return values[k - 1] + (x - left) / (right - left) * (values[k] - values[k - 1])


def bags(x: Tensor, keys: Tensor, zero: Tensor) -> Tensor:
    """Return the sums of bags of 20 embeddings."""
    return F.embedding_bag(keys.view(-1, keys.shape[0] // 20 or 1).t(), x, mode="sum")


def convolution(window: int, stride: int = 1, dilation: int = 1, groups: int = 1) -> Program:
    """Return a convolution with the norm by running statistics and the activation after it."""

    def program(x: Tensor, w: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        padding = dilation * (window // 2)
        y = F.conv2d(x, w, None, stride, padding, dilation, groups)
        return F.relu(F.batch_norm(y, mean, variance, mean, variance))

    return program


def residual(x: Tensor, w: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Return a block of two convolutions, their norms, and the sum with its input."""
    y = F.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, variance))
    return F.relu(F.batch_norm(F.conv2d(y, w, padding=1), mean, variance) + x)


def images(batch: int, side: int, *weight: int) -> InputMaker:
    """Return a function that makes images, a weight of this shape, a mean and a variance."""

    def make(size: Size, dtype: torch.dtype) -> Inputs:
        results, channels, *_ = weight
        n = side if size == "full" else 9
        channels = channels if channels > 1 else results  # 1: a filter for each image
        x = torch.randn(batch if size == "full" else 1, channels, n, n).to(dtype)
        w = torch.randn(weight).to(dtype) / 8
        return x, w, torch.zeros(results).to(dtype), torch.ones(results).to(dtype)

    return make


BIG, TINY = (4096, 4096), (17, 19)
MIDDLE = (512, 512)

STENCILS: dict[str, tuple[Program, InputMaker]] = {
    "heat": (heat(1), grids(1, BIG, TINY)),
    "heat_2": (heat(2), grids(1, BIG, TINY)),
    "heat_4_small": (heat(4), grids(1, MIDDLE, TINY)),
    "heat_line": (heat_line, grids(1, BIG, TINY)),
    "heat_volume": (heat_volume, grids(1, (192, 192, 192), (5, 6, 7))),
    "wave_2": (wave, grids(2, BIG, TINY)),
    "gray_scott": (gray_scott(1), grids(2, BIG, TINY)),
    "gray_scott_2": (gray_scott(2), grids(2, BIG, TINY)),
    "gray_scott_4_small": (gray_scott(4), grids(2, MIDDLE, TINY)),
    "life_2": (life, grids(1, BIG, TINY)),
    "lattice_boltzmann": (lattice_boltzmann, grids(1, (9, 1024, 1024), (9, 7, 5))),
    "sobel": (sobel, grids(1, BIG, TINY)),
    "gaussian": (gaussian, grids(1, BIG, TINY)),
    "local_statistics": (local_statistics, grids(1, (3, 1024, 1024), (2, 17, 9))),
    "curvature": (curvature, grids(1, BIG, TINY)),
    "integral_image": (integral_image, grids(1, (2048, 2048), (33, 35))),
}
ADJOINTS = {
    "heat_2_training": (heat(2), grids(1, BIG, TINY, grad=True)),
    "gray_scott_2_training": (gray_scott(2), grids(2, BIG, TINY, grad=True)),
    "gaussian_training": (gaussian, grids(1, BIG, TINY, grad=True)),
}
RECURRENCES: dict[str, tuple[Program, InputMaker]] = {
    "rwkv_64": (rwkv, rwkv_inputs(64)),
    "low_pass": (low_pass, grids(1, (4096, 64, 32), (3, 5, 4))),
    "hidden_markov": (hidden_markov, markov_inputs),
    **{name: (f, grids(1, (4096, 2048), TINY)) for name, f in CUMULATIVE.items()},
}
SEGMENTS: dict[str, tuple[Program, InputMaker]] = {
    "group_sum": (group_sum, grouped(False)),
    "group_sum_sorted": (group_sum, grouped(True)),
    "group_max": (group_max, grouped(False)),
    "group_statistics": (group_statistics, grouped(False)),
    "histogram": (histogram, grouped(False, ())),
    "quantized": (quantized, grouped(False)),
    "interpolated": (interpolated, grouped(False)),
    "bags": (bags, grouped(False)),
}


def _workloads(
    programs: Mapping[str, tuple[Program, InputMaker]],
    *others: tuple[str, torch.dtype],
    backward: bool = False,
) -> tuple[Workload, ...]:
    """Return the programs in float32, and in `others`: ending of the name, and dtype."""
    return tuple(
        Workload(name + ending, "neighbours", calls(program, inputs, backward=backward), dtype)
        for name, (program, inputs) in programs.items()
        for ending, dtype in (("", torch.float32), *others)
    )


CONVOLUTIONS: dict[str, tuple[Program, InputMaker]] = {
    "convolution": (convolution(3), images(8, 56, 64, 64, 3, 3)),
    "first_convolution": (convolution(7, 2), images(4, 224, 64, 3, 7, 7)),
    "depthwise_convolution": (convolution(3, groups=64), images(8, 56, 64, 1, 3, 3)),
    "dilated_convolution": (convolution(3, dilation=2), images(8, 56, 64, 64, 3, 3)),
    "residual_block": (residual, images(8, 56, 64, 64, 3, 3)),
}

NEIGHBOURS: tuple[Workload, ...] = (
    *_workloads(STENCILS, ("_f64", torch.float64)),
    *_workloads(ADJOINTS, backward=True),
    *_workloads(CONVOLUTIONS, ("_bf16", torch.bfloat16)),
    *_workloads(RECURRENCES | SEGMENTS),
)
