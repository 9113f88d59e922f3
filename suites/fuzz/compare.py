"""Compare what two runs of a program gave: kinds, layouts, sharing, and numbers with a referee."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

ULPS = 8  # that any result may differ from float64, beside eager's error
FLOOR = 4  # ulps of 1 that may be left where numbers cancel: operands are about 1
SHARE_OF_LARGEST = 0.02  # of a tensor's largest number that eager's largest error may excuse


@dataclass(frozen=True)
class Outcome:
    """What a call gave: results, arguments afterwards, gradients of the leaves."""

    results: list[Tensor]
    arguments: list[Tensor]
    gradients: list[Tensor | None]

    def tensors(self) -> list[tuple[str, Tensor | None]]:
        """Return all tensors with a name."""
        named: list[tuple[str, Tensor | None]] = []
        named += [(f"result {k}", x) for k, x in enumerate(self.results)]
        named += [(f"argument {k}", x) for k, x in enumerate(self.arguments)]
        named += [(f"gradient {k}", x) for k, x in enumerate(self.gradients)]
        return named


@dataclass(frozen=True)
class Fault:
    """What is wrong: `kind` groups faults, `detail` is for people.

    `tensor` and `sizes` say where: a result's or an argument's name, and the sizes of the call.
    """

    kind: str
    detail: str
    tensor: str = ""
    sizes: tuple[int, ...] = ()

    def same_as(self, other: "Fault") -> bool:
        """Return whether both are of one kind, in the same tensor of the same call."""
        return replace(self, detail="") == replace(other, detail="")


def find_differences(ours: Outcome, eager: Outcome) -> Iterator[Fault]:
    """Yield the differences that do not concern numbers: one for each tensor, and one of memory."""
    for (name, x), (_, e) in zip(ours.tensors(), eager.tensors(), strict=True):
        if x is None or e is None:
            if (x is None) != (e is None) and (x is None or x.any()):  # zeros are as good
                yield Fault("gradient", f"{name} is {describe(x)}, in eager {describe(e)}", name)
            continue
        kinds = [k for k in ("dtype", "shape", "requires_grad") if getattr(x, k) != getattr(e, k)]
        kinds += ["strides"] if strides(x) != strides(e) else []
        if name.startswith("gradient"):
            kinds = [k for k in kinds if k in ("dtype", "shape")]
        if kinds:
            yield Fault(kinds[0], f"{name} is {describe(x)}, in eager {describe(e)}", name)
    found, expected = (places(o.results, o.arguments) for o in (ours, eager))
    if found == expected:
        return
    same = [
        x == e or (e.startswith("is ") and x != "new") for x, e in zip(found, expected, strict=True)
    ]
    kind = "identity" if all(same) else "sharing"
    text = f"results with {len(ours.arguments)} arguments: {found}, in eager {expected}"
    yield Fault(kind, text)


def strides(x: Tensor) -> tuple[int, ...]:
    """Return the strides that matter: of dimensions of more than one element."""
    if not x.numel():
        return ()
    return tuple(s if n > 1 else 0 for n, s in zip(x.shape, x.stride(), strict=True))


def places(results: Sequence[Tensor], arguments: Sequence[Tensor]) -> list[str]:
    """Return which result is an argument, which overlap in memory, and where in an argument.

    Pieces of one tensor that do not overlap may lie anywhere.
    """
    found = []
    tensors = [*arguments, *results]
    ranges = [_range(x) for x in tensors]
    for k, x in enumerate(results):
        same = next((j for j, a in enumerate(tensors[: len(arguments) + k]) if a is x), None)
        if same is not None:
            found.append(f"is {same}")
        elif not x.numel():
            found.append("empty")
        else:
            at = len(arguments) + k
            first = next(j for j in range(at + 1) if _meet(ranges[j], ranges[at]))
            offset = x.storage_offset() - tensors[first].storage_offset()
            found.append(f"in {first} at {offset}" if first < at else "new")
    return found


def _range(x: Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor and the one after its last."""
    if not x.numel():
        return 0, 0
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1) * x.element_size()


def _meet(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def describe(x: Tensor | None) -> str:
    """Return dtype, shape and strides."""
    if x is None:
        return "None"
    grad = ", requires grad" if x.requires_grad else ""
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)} strides {list(x.stride())}{grad}"


def same_bits(x: Tensor | None, y: Tensor | None) -> bool:
    """Return whether two tensors have equal elements; nan equals nan, -0.0 is not 0.0."""
    if x is None or y is None or x.shape != y.shape:
        return x is y
    x, y = plain(x), plain(y)
    if not x.is_floating_point():
        return torch.equal(x, y)
    same = (x == y) & (x.signbit() == y.signbit()) | (x.isnan() & y.isnan())
    return bool(same.all())


def nearly_same(x: Tensor | None, y: Tensor | None, eps: float) -> bool:
    """Return whether two tensors differ by no more than another order of sums.

    `eps` is that of the narrowest dtype between arguments and results, if the tensors' own is less.
    """
    if x is None or y is None or x.shape != y.shape or not plain(x).is_floating_point():
        return False
    x, y = plain(x), plain(y)
    largest = float(x.abs().nan_to_num(0, 0, 0).max()) if x.numel() else 0.0
    near = 64 * max(eps, torch.finfo(x.dtype).eps) * largest
    return torch.allclose(x, y, rtol=0, atol=near, equal_nan=True)


def plain(x: Tensor) -> Tensor:
    """Return the numbers of a tensor, complex ones as pairs."""
    x = x.detach()
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x.resolve_neg()


def too_far(
    ours: Tensor,
    eager: Tensor,
    referee: Tensor,
    spread: Tensor | None = None,
    *,
    gradient: bool = False,
) -> str:
    """Return where our error is above twice eager's and some ulps; "" if nowhere.

    `spread` is how far rounding errors in every operation move the referee. The ulps of a gradient
    are those of its largest number: its formulas cancel.
    """
    eps = torch.finfo(ours.dtype).eps if ours.is_floating_point() or ours.is_complex() else 0
    x, e, r = plain(ours), plain(eager), plain(referee)
    if not x.is_floating_point():
        wrong = x != e
        if r.shape == x.shape and not r.is_floating_point():
            wrong &= x != r
    else:
        tiny = torch.finfo(x.dtype).smallest_normal
        x, e, r = x.double(), e.double(), r.double()
        error, allowed = (x - r).abs(), (e - r).abs()
        largest = float(r.abs().nan_to_num(0, 0, 0).max()) if r.numel() else 0.0
        excused = min(2 * float(allowed.nan_to_num(0, 0, 0).max()), SHARE_OF_LARGEST * largest)
        unit = largest if gradient else r.abs()
        limit = 2 * allowed + eps * (ULPS * unit + FLOOR) + ULPS * tiny + excused
        limit = limit + (spread if spread is not None else 0)
        fine = (error <= limit) | (x == e) | (x.isnan() & (r.isnan() | e.isnan())) | (x == r)
        wrong = ~fine
        if spread is not None:
            wrong &= spread.isfinite()
    if not wrong.any():
        return ""
    at = wrong.nonzero()[0].tolist()
    place = tuple(at)
    return (
        f"{int(wrong.sum())} of {wrong.numel()} numbers of {describe(ours)} are wrong; at {at} "
        f"{x[place].item()!r}, in eager {e[place].item()!r}, in float64 {r[place].item()!r}"
    )
