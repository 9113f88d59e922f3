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
    device: str = "cpu"


@dataclass(frozen=True)
class Launch:
    """Run kernel number `kernel` on tensors and sizes; `t_x+64` begins 64 bytes into `t_x`.

    Launches one after the other with the same number of a `group` are made as one.
    """

    kernel: int
    name: str
    tensors: tuple[str, ...]
    symbols: tuple[str, ...]
    group: int | None = None


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


@dataclass(frozen=True)
class Arena:
    """One block of bytes for all results that only kernels see; a launch's tensor `arena+64`
    stands at that byte of it."""

    nbytes: int


Step = Union[Arena, Allocate, Launch, Call, View, Release]  # noqa: UP007


@dataclass(frozen=True)
class Parameter:
    """One argument of a call: a tensor that lies as `strides` say, a size, or nothing used.

    `written` says that the call changes the tensor, `spent` that it may, for it is nobody else's:
    where somebody else holds it, it changes a copy.
    """

    name: str
    strides: tuple[Dim, ...] | None
    written: bool = False
    spent: bool = False


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
    """Text of a plan, a line a step; `parse_plan` reads it back."""
    lines = [f"plan {plan.name}({', '.join(map(_show_parameter, plan.parameters))}) {{"]
    lines += [f"  size {name} = {text}" for name, text in plan.symbols]
    lines += [f"  {show_step(step)}" for step in plan.steps]
    return "\n".join([*lines, f"  return {', '.join(plan.results)}".rstrip(), "}"])


def _show_parameter(p: Parameter) -> str:
    return _laid(p.name, p.strides) + "!" * p.written + "~" * p.spent


def show_step(step: Step) -> str:
    """One line of a plan."""
    match step:
        case Arena():
            return f"arena {step.nbytes}"
        case Allocate():
            shape = f"[{','.join(map(show_dim, step.shape))}]"
            at = "" if step.device == "cpu" else f"@{step.device}"
            return f"{step.name} = allocate {_laid(step.dtype.value + shape, step.strides)}{at}"
        case Launch():
            sizes = f"; {', '.join(step.symbols)}" if step.symbols else ""
            group = "" if step.group is None else f" in group {step.group}"
            return f"launch {step.kernel} {step.name}({', '.join(step.tensors)}{sizes}){group}"
        case Call():
            results = map(_laid, step.results, step.strides)
            picks = f"[{','.join(map(str, step.picks))}]" if step.picks else ""
            return f"{', '.join(results) or '_'} = call {step.target}{picks}({step.args})"
        case View():
            shape = f"[{','.join(map(show_dim, step.shape))}]"
            place = f"{_laid(shape, step.strides)} + {show_dim(step.offset)}"
            return f"{step.name} = view {step.source} {place}"
        case Release():
            return f"release {', '.join(step.names)}"


def _laid(what: str, strides: tuple[Dim, ...] | None) -> str:
    """`t_x{4,1}`: something and the strides it lies at, where they are known."""
    return what if strides is None else f"{what}{{{','.join(map(show_dim, strides))}}}"
