"""Check the inputs of a call against the definition, and flatten them to plan arguments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Union

import torch

from tofuse.capture.fx.devices import on_host
from tofuse.errors import DefinitionError
from tofuse.frontends.definition import DefineScalar, DefineTensor, DefineVector, Statement
from tofuse.frontends.input_layouts import first_noncontiguous_dim
from tofuse.frontends.items import located

Input = Union[torch.Tensor, bool, int, float, complex, Sequence[int]]  # noqa: UP007
PlanArgument = Union[torch.Tensor, int]  # noqa: UP007
InputSpec = Union[DefineTensor, DefineScalar, DefineVector]  # noqa: UP007


def input_specs(statements: Sequence[Statement]) -> list[InputSpec]:
    """Return the inputs that a definition declares, in order."""
    specs: list[InputSpec] = []
    for s in statements:
        match s:
            case DefineTensor() | DefineScalar(value=None) | DefineVector(entries=None):
                specs.append(s)
    return specs


def flatten_inputs(
    name: str, specs: Sequence[InputSpec], inputs: Sequence[Input]
) -> list[PlanArgument]:
    """Return the arguments of the plan; DefinitionError if an input is not as declared."""
    if not isinstance(inputs, Sequence):
        raise DefinitionError(f"{name} takes its inputs in a list, not a {type(inputs).__name__}")
    if len(inputs) != len(specs):
        inputs = _regroup(name, specs, inputs)
    flat: list[PlanArgument] = []
    for k, (spec, x) in enumerate(zip(specs, inputs, strict=True)):
        if isinstance(spec, DefineTensor):
            flat.append(_tensor(spec, k, x))
        elif isinstance(spec, DefineScalar):
            flat.append(_scalar(spec, k, x))
        else:
            flat += _vector(spec, k, x)
    devices = {str(t.device) for t in flat if isinstance(t, torch.Tensor) and t.dim()}
    if len(devices) > 1:
        raise DefinitionError(
            f"{name}: the inputs must be on one device, not on {' and '.join(sorted(devices))}"
        )
    return flat


def _regroup(name: str, specs: Sequence[InputSpec], inputs: Sequence[Input]) -> list[Input]:
    """Collect the entries of vectors, which a caller may pass one by one."""
    widths = [s.size if isinstance(s, DefineVector) else 1 for s in specs]
    if len(inputs) != sum(widths):
        names = ", ".join(repr(s.result) for s in specs)
        raise DefinitionError(f"{name} takes {len(specs)} inputs ({names}), not {len(inputs)}")
    rest = iter(inputs)
    return [
        list(islice(rest, s.size)) if isinstance(s, DefineVector) else next(rest)  # type: ignore[arg-type]  # checked later
        for s in specs
    ]


def _input_error(spec: InputSpec, k: int, message: str) -> DefinitionError:
    return DefinitionError(located(spec.name, spec.loc, f"input {k} ({spec.result}) {message}"))


def _tensor(spec: DefineTensor, k: int, x: Input) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        raise _input_error(spec, k, f"is {type(x).__name__}, not a tensor")
    if x.dtype is not spec.dtype.torch:
        declared = f"{spec.dtype.value} ({spec.dtype.torch})"
        raise _input_error(spec, k, f"has dtype {x.dtype}, not {declared}")
    if x.layout is not torch.strided or x.is_conj() or x.is_neg():
        raise _input_error(spec, k, "is not a plain dense tensor")
    if x.dim() != len(spec.shape):
        raise _input_error(spec, k, f"has {x.dim()} dimensions, not {len(spec.shape)}")
    if spec.is_cpu and not on_host(x):
        raise _input_error(spec, k, f"is on {x.device}, but declared with is_cpu=True")
    for d, extent in enumerate(spec.shape):
        if extent not in (-1, x.shape[d]):
            raise _input_error(spec, k, f"has {x.shape[d]} elements at dimension {d}, not {extent}")
    dim = first_noncontiguous_dim(x, spec.contiguity, spec.stride_order)
    if dim is not None:
        strides = f"its shape is {tuple(x.shape)}, its strides are {x.stride()}"
        raise _input_error(spec, k, f"is not contiguous at dimension {dim}: {strides}")
    return x


def _scalar(spec: DefineScalar, k: int, x: Input) -> PlanArgument:
    if isinstance(x, torch.Tensor) and x.numel() == 1:
        x = x.item()
    if not isinstance(x, (bool, int, float, complex)):
        raise _input_error(spec, k, f"is {type(x).__name__}, not a number")
    if isinstance(x, complex) and not spec.dtype.is_complex:
        raise _input_error(spec, k, f"is {x!r}, not a real number")
    if not spec.dtype.is_int:
        return torch.tensor(x, dtype=spec.dtype.torch)
    if isinstance(x, complex) or x != int(x):
        raise _input_error(spec, k, f"is {x!r}, not an integer")
    return int(x)


def _vector(spec: DefineVector, k: int, x: Input) -> list[int]:
    if isinstance(x, (list, tuple)) and len(x) == spec.size:
        return [int(n) for n in x]
    raise _input_error(spec, k, f"is {x!r}, not {spec.size} integers")
