"""What a call of a definition brings: checked against the definition, and made flat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import torch

from tofuse.errors import DefinitionError
from tofuse.frontends.input_layouts import breach
from tofuse.frontends.lowering import located
from tofuse.frontends.program import DefineScalar, DefineTensor, DefineVector, Statement

Input = Union[torch.Tensor, bool, int, float, complex, Sequence[int]]  # noqa: UP007
Flat = Union[torch.Tensor, int]  # noqa: UP007
Spec = Union[DefineTensor, DefineScalar, DefineVector]  # noqa: UP007


def specs(statements: Sequence[Statement]) -> list[Spec]:
    """The inputs of a definition, in order."""
    found: list[Spec] = []
    for s in statements:
        match s:
            case DefineTensor() | DefineScalar(value=None) | DefineVector(entries=None):
                found.append(s)
    return found


def flatten(name: str, wanted: Sequence[Spec], given: Sequence[Input]) -> list[Flat]:
    """The arguments of the plan; DefinitionError where one is not as defined."""
    if not isinstance(given, Sequence):
        raise DefinitionError(f"{name} takes its inputs in a list, not a {type(given).__name__}")
    if len(given) != len(wanted):
        given = _regroup(name, wanted, given)
    flat: list[Flat] = []
    for k, (spec, x) in enumerate(zip(wanted, given, strict=True)):
        if isinstance(spec, DefineTensor):
            flat.append(_tensor(spec, k, x))
        elif isinstance(spec, DefineScalar):
            flat.append(_scalar(spec, k, x))
        else:
            flat += _vector(spec, k, x)
    places = {str(t.device) for t in flat if isinstance(t, torch.Tensor) and t.dim()}
    if len(places) > 1:
        raise DefinitionError(f"{name}: the inputs lie on {' and '.join(sorted(places))}")
    return flat


def _regroup(name: str, wanted: Sequence[Spec], given: Sequence[Input]) -> list[Input]:
    """Entries of vectors may be given one by one."""
    widths = [s.size if isinstance(s, DefineVector) else 1 for s in wanted]
    if len(given) != sum(widths):
        names = ", ".join(repr(s.result) for s in wanted)
        raise DefinitionError(f"{name} takes {len(wanted)} inputs ({names}), not {len(given)}")
    grouped: list[Input] = []
    at = 0
    for spec, width in zip(wanted, widths, strict=True):
        piece = list(given[at : at + width])
        grouped.append(piece if isinstance(spec, DefineVector) else piece[0])  # type: ignore[arg-type]  # checked later
        at += width
    return grouped


def _wrong(spec: Spec, k: int, message: str) -> DefinitionError:
    op = {"T": "define_tensor", "S": "define_scalar", "V": "define_vector"}[spec.result.kind]
    return DefinitionError(located(op, spec.loc, f"input {k} ({spec.result}) {message}"))


def _tensor(spec: DefineTensor, k: int, given: Input) -> torch.Tensor:
    if not isinstance(given, torch.Tensor):
        raise _wrong(spec, k, f"is {type(given).__name__}, not a tensor")
    if given.dtype is not spec.dtype.torch:
        wanted = f"{spec.dtype.value} is {spec.dtype.torch}"
        raise _wrong(spec, k, f"has dtype {given.dtype}, and {wanted}")
    if given.layout is not torch.strided or given.is_conj() or given.is_neg():
        raise _wrong(spec, k, "is not a plain dense tensor")
    if given.dim() != len(spec.shape):
        raise _wrong(spec, k, f"has {given.dim()} dimensions, not {len(spec.shape)}")
    if spec.is_cpu and given.device.type != "cpu":
        raise _wrong(spec, k, f"lies on {given.device}, and is_cpu was said")
    for d, extent in enumerate(spec.shape):
        if extent not in (-1, given.shape[d]):
            raise _wrong(spec, k, f"has {given.shape[d]} elements at dimension {d}, not {extent}")
    loose = breach(given, spec.contiguity, spec.stride_order)
    if loose is not None:
        strides = f"its shape is {tuple(given.shape)}, its strides are {given.stride()}"
        raise _wrong(spec, k, f"is not contiguous at dimension {loose}: {strides}")
    return given


def _scalar(spec: DefineScalar, k: int, given: Input) -> Flat:
    if isinstance(given, torch.Tensor) and given.numel() == 1:
        given = given.item()
    if not isinstance(given, (bool, int, float, complex)):
        raise _wrong(spec, k, f"is {type(given).__name__}, not a number")
    if isinstance(given, complex) and not spec.dtype.is_complex:
        raise _wrong(spec, k, f"is {given!r}, not a real number")
    if not spec.dtype.is_int:
        return torch.tensor(given, dtype=spec.dtype.torch)
    if isinstance(given, complex) or given != int(given):
        raise _wrong(spec, k, f"is {given!r}, not an integer")
    return int(given)


def _vector(spec: DefineVector, k: int, given: Input) -> list[int]:
    if isinstance(given, (list, tuple)) and len(given) == spec.size:
        return [int(n) for n in given]
    raise _wrong(spec, k, f"is {given!r}, not {spec.size} integers")
