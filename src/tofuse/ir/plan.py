"""Plan: the flat list of what one call does: allocate, launch, call libraries, view, release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from tofuse.ir.dims import Dim, show_dim
from tofuse.ir.types import DType


@dataclass(frozen=True)
class Allocate:
    """A new tensor."""

    name: str
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    dtype: DType


@dataclass(frozen=True)
class Launch:
    """Run kernel number `kernel` on tensors and size symbols; `work` elements decide on threads."""

    kernel: int
    name: str
    tensors: tuple[str, ...]
    symbols: tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """Run a PyTorch operator; `args` is the text of its arguments, in terms of tensors' names.

    `results` are bound to the returned tuple's `picks`, or to the result itself where that is ().
    """

    target: str
    args: str
    results: tuple[str, ...]
    picks: tuple[int, ...]
    strides: tuple[tuple[Dim, ...] | None, ...]


@dataclass(frozen=True)
class View:
    """A tensor on the memory of another."""

    name: str
    source: str
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim


@dataclass(frozen=True)
class Release:
    """Drop tensors that nothing reads any more."""

    names: tuple[str, ...]


Step = Union[Allocate, Launch, Call, View, Release]  # noqa: UP007


@dataclass(frozen=True)
class Parameter:
    """One argument of a call: a tensor that lies as `strides` say, a size, or nothing used."""

    name: str
    strides: tuple[Dim, ...] | None


@dataclass(frozen=True)
class Plan:
    """`symbols` says where each size comes from, as Python text over the parameters."""

    name: str
    parameters: tuple[Parameter, ...]
    symbols: tuple[tuple[str, str], ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]

    def __repr__(self) -> str:
        return show_plan(self)


def show_plan(plan: Plan) -> str:
    """Text of a plan, a line a step."""
    lines = [f"plan {plan.name}({', '.join(p.name for p in plan.parameters)}) {{"]
    lines += [f"  {name} = {text}" for name, text in plan.symbols]
    lines += [f"  {_show(step)}" for step in plan.steps]
    return "\n".join([*lines, f"  return {', '.join(plan.results)}", "}"])


def _show(step: Step) -> str:
    match step:
        case Allocate():
            return (
                f"{step.name} = allocate {step.dtype.value}{_dims(step.shape)}{_dims(step.strides)}"
            )
        case Launch():
            return f"launch {step.name}({', '.join((*step.tensors, *step.symbols))})"
        case Call():
            return f"{', '.join(step.results) or '_'} = {step.target}({step.args})"
        case View():
            place = f"{_dims(step.shape)}{_dims(step.strides)} + {show_dim(step.offset)}"
            return f"{step.name} = view {step.source} {place}"
        case Release():
            return f"release {', '.join(step.names)}"


def _dims(dims: tuple[Dim, ...]) -> str:
    return f"[{','.join(map(show_dim, dims))}]"
