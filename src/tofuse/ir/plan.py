"""Plan: the steps of one call: allocations, launches, operator calls, views and releases."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Union

from tofuse.ir.call_arguments import CallArguments
from tofuse.ir.dims import Dim, product, show_dims, show_strides
from tofuse.ir.graph import Value
from tofuse.ir.row_access import KernelRows
from tofuse.ir.size_expression import ArgumentSize, SizeSource
from tofuse.ir.types import HOST, DType, is_host


@dataclass(frozen=True)
class Allocate:
    """Allocate a tensor."""

    name: str
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    dtype: DType
    device: str = HOST

    @property
    def on_host(self) -> bool:
        return is_host(self.device)

    @property
    def has_gaps(self) -> bool:
        """Whether the elements do not fill the memory from the first to the last, at some size."""
        reach: Dim = 1
        for extent, stride in zip(self.shape, self.strides, strict=True):
            reach = product((extent - 1, stride)) + reach
        return reach != product(self.shape)


@dataclass(frozen=True)
class Address:
    """The memory that a launch accesses: all of a tensor, or a slice from byte `offset` on."""

    tensor: str
    offset: int | None = None

    def overlaps(self, other: Address) -> bool:
        """Whether two may share a byte. Slices that start elsewhere are disjoint."""
        same_part = None in (self.offset, other.offset) or self.offset == other.offset
        return self.tensor == other.tensor and same_part

    def __repr__(self) -> str:
        return self.tensor if self.offset is None else f"{self.tensor}+{self.offset}"


@dataclass(frozen=True)
class Launch:
    """Run kernel number `kernel` on tensors and sizes. `t_x+64` starts 64 bytes into `t_x`.

    Consecutive launches with the same `group` number run as one launch.
    """

    kernel: int
    name: str
    tensors: tuple[Address, ...]
    sizes: tuple[Dim, ...]
    group: int | None = None


@dataclass(frozen=True)
class Call:
    """Run a PyTorch operator. Its arguments refer to tensors by name.

    `results` are the elements `picks` of the returned tuple; without picks, the returned tensor.
    Their shapes must be `shapes`, if these are given: the operator may return others. Kernels read
    them as `dtypes`, if these are given.
    """

    target: str
    arguments: CallArguments
    results: tuple[str, ...]
    picks: tuple[int, ...]
    strides: tuple[tuple[Dim, ...] | None, ...]
    shapes: tuple[tuple[Dim, ...], ...] = ()
    dtypes: tuple[DType, ...] = ()


@dataclass(frozen=True)
class OutVariant:
    """An operator's overload that writes into given tensors, and the names of its out arguments.

    Without names, it writes into its first operand.
    """

    target: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """Make a strided view of the tensor `source`."""

    name: str
    source: str
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    offset: Dim


@dataclass(frozen=True)
class Release:
    """Release tensors after their last use."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Arena:
    """Allocate one block for the tensors that only kernels use. `arena+64` is byte 64 of it."""

    nbytes: int


@dataclass(frozen=True)
class ScratchRows:
    """A tensor whose rows of one tile are in `nbytes` bytes of a thread's scratch.

    A tile whose rows are not adjacent uses the memory of the tensor, which is then allocated, too.
    """

    name: str
    nbytes: int
    is_allocated: bool = False


@dataclass(frozen=True)
class Tiles:
    """Run the launches of a group tile by tile: `count` parts of their rows.

    There are `chunks` of tiles. A thread runs the tiles of a chunk one after the other. In a tile,
    each launch computes the rows that the tile stores. It also computes the rows that a later
    launch of the tile reads, if no earlier tile of the chunk has computed them. `rows` are the
    accesses of each launch to tensors that the group writes. `scratch` are tensors that only the
    group writes and reads.
    """

    group: int
    count: int
    chunks: int
    rows: tuple[KernelRows, ...]
    scratch: tuple[ScratchRows, ...]


Result = Union[str, Dim, None]  # noqa: UP007  (of a plan: a tensor by name, or a size)
Step = Union[Arena, Allocate, Tiles, Launch, Call, View, Release]  # noqa: UP007


@dataclass(frozen=True)
class Parameter:
    """An argument of the call: a tensor with `strides`, a size, or an unused argument.

    `mutated`: the call writes into the tensor, as the user's program does. `donated`: the call may
    reuse the tensor's memory; if anything else refers to the tensor, the call uses a copy.
    """

    name: str
    strides: tuple[Dim, ...] | None
    mutated: bool = False
    donated: bool = False


@dataclass(frozen=True)
class Plan:
    """A straight-line program. `symbols` gives the source of each size among the parameters."""

    name: str
    parameters: tuple[Parameter, ...]
    symbols: tuple[tuple[str, SizeSource], ...]
    steps: tuple[Step, ...]
    results: tuple[Result, ...]

    def __repr__(self) -> str:
        """Return the text of a plan, one step per line, which `parse_plan` accepts."""
        lines = [f"plan {self.name}({', '.join(map(_show_parameter, self.parameters))}) {{"]
        lines += [f"  size {name} = {show_source(self, source)}" for name, source in self.symbols]
        lines += [f"  {show_step(step)}" for step in self.steps]
        results = ", ".join(map(str, self.results))
        return "\n".join([*lines, f"  return {results}".rstrip(), "}"])


def launches_by_group(plan: Plan) -> dict[int, list[Launch]]:
    """Return the launches of each group."""
    groups: dict[int, list[Launch]] = {}
    for step in plan.steps:
        if isinstance(step, Launch) and step.group is not None:
            groups.setdefault(step.group, []).append(step)
    return groups


def tiles_by_group(plan: Plan) -> dict[int, Tiles]:
    """Return the tiles of each group that runs by tiles."""
    return {step.group: step for step in plan.steps if isinstance(step, Tiles)}


def variable(v: Value) -> str:
    """Return the name of a value's tensor in a plan, which is a Python name."""
    return "t_" + re.sub(r"\W", "_", v.name)


def show_source(plan: Plan, source: SizeSource) -> str:
    """Return Python text of a size: `t_x.size(0)`, `n1` for an argument, or an expression."""
    if not isinstance(source, ArgumentSize):
        return repr(source)
    name = plan.parameters[source.argument].name
    return name if source.kind == "argument" else f"{name}.{source.kind}({source.dim})"


def _show_parameter(p: Parameter) -> str:
    return p.name + show_strides(p.strides) + "!" * p.mutated + "~" * p.donated


def show_step(step: Step) -> str:
    """Return one line of a plan."""
    match step:
        case Arena():
            return f"arena {step.nbytes}"
        case Allocate():
            at = "" if step.on_host else f"@{step.device}"
            layout = f"[{show_dims(step.shape)}]{show_strides(step.strides)}"
            return f"{step.name} = allocate {step.dtype.value}{layout}{at}"
        case Tiles():
            scratch = (f"{s.name} {s.nbytes}{' allocated' * s.is_allocated}" for s in step.scratch)
            rows = "".join(f"; {r!r}" for r in step.rows)
            numbers = f"{step.count} in {step.chunks} of group {step.group}"
            return f"tiles {numbers} ({', '.join(scratch)}{rows})"
        case Launch():
            sizes = f"; {', '.join(map(str, step.sizes))}" if step.sizes else ""
            group = "" if step.group is None else f" in group {step.group}"
            operands = f"({', '.join(map(repr, step.tensors))}{sizes})"
            return f"launch {step.kernel} {step.name}{operands}{group}"
        case Call():
            results = (r + show_strides(s) for r, s in zip(step.results, step.strides, strict=True))
            picks = f"[{','.join(map(str, step.picks))}]" if step.picks else ""
            call = f"{step.target}{picks}({step.arguments!r})"
            if step.shapes:
                call += f" returns {', '.join(f'[{show_dims(s)}]' for s in step.shapes)}"
            if step.dtypes:
                call += f" as {', '.join(dtype.value for dtype in step.dtypes)}"
            return f"{', '.join(results) or '_'} = call {call}"
        case View():
            layout = f"[{show_dims(step.shape)}]{show_strides(step.strides)}"
            return f"{step.name} = view {step.source} {layout} + {step.offset}"
        case Release():
            return f"release {', '.join(step.names)}"
