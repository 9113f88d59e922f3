"""Compares the errors of compiled results with those of eager, both against float64."""

import math
import statistics
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

EPSILON = 2.0**-24
ZERO = 1e-10  # of the largest tensor: what float64 leaves where numbers cancel
HUGE = 1e30  # masks have numbers that float32 and float64 spell differently


def error_ratios(
    ours: Mapping[str, Tensor], eager: Mapping[str, Tensor], exact: Mapping[str, Tensor]
) -> dict[str, float]:
    """Return the ratio of our error to eager's for each tensor.

    An error is the root of the mean square over a tensor. An error of eager counts as at least a
    few units in the last place of its tensor, and as at least the relative error that half of the
    tensors have: the errors of a small tensor are few random numbers. A tensor that is zero in
    exact arithmetic, such as the gradient of a bias before a batch norm, may have 64 units in the
    last place of the largest one. The ratio is infinite for a tensor that is missing or has another
    shape or other special values; its key says so.
    """
    floors = _floors(eager, exact)
    ratios = {}
    for name, reference in exact.items():
        if name not in ours:
            if reference.any():
                ratios[f"{name} is missing"] = math.inf
        elif ours[name].shape != reference.shape:
            ratios[f"{name} has shape {tuple(ours[name].shape)}"] = math.inf
        elif not _same_specials(ours[name], eager[name]):
            ratios[f"{name} has other infinities or nan"] = math.inf
        else:
            ratios[name] = _error(ours[name], reference) / floors[name]
    return ratios


def worst_median(draws: Sequence[Mapping[str, float]]) -> tuple[float, str]:
    """Return the largest median over several draws of ratios, and the key that has it."""
    names = {name for ratios in draws for name in ratios}
    medians = {name: statistics.median(d[name] for d in draws if name in d) for name in names}
    worst = max(medians, key=lambda name: medians[name], default="")
    return medians.get(worst, 0.0), worst


def _floors(eager: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, float]:
    scales = {name: _size(x) for name, x in exact.items()}
    errors = {name: _error(eager[name], x) for name, x in exact.items()}
    relative = sorted(errors[name] / scales[name] for name in exact if scales[name])
    typical = relative[len(relative) // 2] if relative else 0.0
    largest = max(scales.values(), default=0.0)

    def least(name: str) -> float:
        return EPSILON * largest * (64 if scales[name] < ZERO * largest else 1 / 16) + 1e-30

    return {
        name: max(errors[name], max(4 * EPSILON, typical) * scales[name], least(name))
        for name in exact
    }


def _same_specials(ours: Tensor, eager: Tensor) -> bool:
    special = ~(eager.double().abs() < HUGE)
    return torch.equal(special, ~(ours.double().abs() < HUGE)) and torch.equal(
        ours[special].nan_to_num(), eager[special].nan_to_num()
    )


def _error(x: Tensor, exact: Tensor) -> float:
    finite = (exact.abs() < HUGE) & (x.double().abs() < HUGE)
    return _size((x.double() - exact)[finite])


def _size(x: Tensor) -> float:
    finite = x[x.abs() < HUGE].double()
    return finite.square().mean().sqrt().item() if finite.numel() else 0.0
