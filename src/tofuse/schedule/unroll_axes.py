"""Kernel -> Kernel: short axes between the neighbours of a long one are written out.

Pairs that are rotated, colours of pixels, corners of boxes: a vector runs along the pairs, and what
is done with each of the two stands there once for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tofuse.ir.dims import hint
from tofuse.ir.graph import Scalar
from tofuse.ir.interleave import is_between, shuffles
from tofuse.ir.kernel import (
    Affine,
    Arg,
    Compute,
    Inside,
    Iota,
    Kernel,
    Load,
    Reduce,
    Stmt,
    Store,
    Take,
    Uniform,
    affine,
    iteration_axes,
    live,
)
from tofuse.ir.schedule import Target

LEAST = 16  # elements along the axis that vectors then run along
SHORT = 8  # elements that are written out in any case; more are if they are reduced twice
FEW = 4  # of a longer row, as of a matrix; so are these
DEAREST = 13  # shuffles of a row of those
PIECES = 2  # or if guards tell so many of them apart
PART = 4  # at one of so many places, or more
MOST = 512  # statements
MASKED = 4096  # of which most are of other places


def write_out(kernel: Kernel, target: Target) -> Kernel:
    """The kernel with as few such axes as its length allows."""
    if target.lanes == 1:
        return kernel
    refused: set[str] = set()
    while (found := _short_axis(kernel, refused)) is not None:
        axis, step = found
        short = step <= SHORT or hint(kernel.extent(axis)) <= FEW
        written = _written(kernel, axis, short or _folds_twice(kernel, axis, step, target))
        if written is None:
            refused.add(axis)
        else:
            kernel = written
    return kernel


def _short_axis(kernel: Kernel, refused: set[str]) -> tuple[str, int] | None:
    """An axis all of which lies between neighbours of a long one in some access, and their gap."""
    for s in kernel.body:
        if isinstance(s, (Load, Store)):
            for along in s.index.axes:
                if hint(kernel.extent(along)) >= LEAST:
                    for axis in s.index.axes:
                        if axis not in refused and is_between(kernel, s.index, axis, along):
                            return axis, hint(s.index.coefficient(along))
    return None


def _folds_twice(kernel: Kernel, axis: str, step: int, target: Target) -> bool:
    """Whether shuffles are less than to bring the lanes of a row together, vector by vector."""
    count = hint(kernel.extent(axis))
    folds = sum(1 for s in kernel.body if isinstance(s, Reduce) and axis in s.over)
    places = [s.index for s in kernel.body if isinstance(s, (Load, Store)) and axis in s.index.axes]
    side_by_side = all(p.coefficient(axis) == 1 for p in places)
    whole = count == step <= 2 * target.lanes and count * shuffles(count) <= DEAREST * target.lanes
    return folds > 1 and side_by_side and whole


def _written(kernel: Kernel, axis: str, pays: bool) -> Kernel | None:
    """With every statement once for each place, if all can be and that is not too much.

    Where it does not pay anyhow, it does if each place is another formula, which is all of them
    under masks otherwise: a stack of the nine elements of a rotation.
    """
    _, runs = iteration_axes(kernel)
    inside = [s for s in kernel.body if axis in runs[s]]
    if any(isinstance(s, Uniform) for s in inside):
        return None
    if any(isinstance(s, Reduce) and s.position is not None for s in inside):
        return None
    masked = len(inside) * hint(kernel.extent(axis)) + len(kernel.body) - len(inside)
    cut = [s for s in inside if isinstance(s, Inside) and s.index.axes == (axis,)]
    if masked > MASKED or not (pays or _told_apart(cut, kernel, axis)):
        return None
    written = _Writer(kernel, axis).kernel()
    return written if len(written.body) <= (MOST if pays else min(MOST, masked // 2)) else None


def _told_apart(guards: Sequence[Inside], kernel: Kernel, axis: str) -> bool:
    """Whether guards tell places apart: at many of them they leave something out."""
    count = hint(kernel.extent(axis))
    left_out = 0
    for s in guards:
        first, step = hint(s.index.const), hint(s.index.coefficient(axis))
        passed = range(hint(s.lo), hint(s.hi))
        left_out += sum(first + k * step not in passed for k in range(count))
    return len(guards) >= PIECES and left_out * PART >= len(guards) * count


@dataclass
class _Writer:
    """`names` has what stands for a value at each place, `known` what guards are there."""

    old: Kernel
    axis: str
    body: list[Stmt] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = self.old.extent(self.axis)
        assert isinstance(count, int)
        self.names: list[dict[str, str]] = [{} for _ in range(count)]
        self.known: list[dict[str, bool]] = [{} for _ in range(count)]

    def kernel(self) -> Kernel:
        _, runs = iteration_axes(self.old)
        for s in self.old.body:
            if self.axis not in runs[s]:
                self.body.append(s)
            elif isinstance(s, Reduce) and self.axis in s.over:
                self._combine(s)
            else:
                for k in range(len(self.names)):
                    self._write(s, k)
        axes = tuple(a for a in self.old.axes if a.name != self.axis)
        return replace(self.old, axes=axes, body=tuple(live(self.body)))

    def _write(self, s: Stmt, k: int) -> None:
        """A statement at one place."""
        guard = s.guard if isinstance(s, (Load, Take, Inside)) else None
        passed = True if guard is None else self.known[k].get(guard)
        if isinstance(s, Store):
            value = self._name(s.value, k)
            self.body.append(replace(s, index=self._at(s.index, k), value=value))
            return
        if isinstance(s, Inside):
            self._judge(s, k, passed)
        if isinstance(s, Compute) and s.op == "where" and s.args[0] in self.known[k]:
            chosen = s.args[1 if self.known[k][str(s.args[0])] else 2]
            if isinstance(chosen, str):
                self.names[k][s.name] = self.names[k].get(chosen, chosen)
                return
            s = replace(s, args=(Scalar(True), chosen, chosen))  # what is not chosen is not needed
        self.names[k][s.name] = name = f"{s.name}_{k}"
        if isinstance(s, (Load, Take)) and passed is False:
            zero = Scalar(0.0 if s.dtype.is_float else 0)
            kept = (Scalar(True), zero, zero)
            self.body.append(Compute(name, "where", kept, s.dtype, s.dtype))
            return
        self.body.append(self._placed(s, name, k, None if passed else guard))

    def _placed(self, s: Stmt, name: str, k: int, guard: str | None) -> Stmt:
        own = None if guard is None else self.names[k].get(guard, guard)
        match s:
            case Load() | Inside():
                return replace(s, name=name, index=self._at(s.index, k), guard=own)
            case Take():
                by = self.names[k].get(s.by, s.by)
                return replace(s, name=name, index=self._at(s.index, k), by=by, guard=own)
            case Iota():
                return replace(s, name=name, index=self._at(s.index, k))
            case Compute():
                return replace(s, name=name, args=tuple(self._name(a, k) for a in s.args))
            case Reduce():
                return replace(s, name=name, arg=self.names[k].get(s.arg, s.arg))
        raise AssertionError(s)

    def _combine(self, s: Reduce) -> None:
        """A reduction over the axis: its operands at all places, in pairs, and what is left."""
        parts = [names.get(s.arg, s.arg) for names in self.names]
        over, op = tuple(a for a in s.over if a != self.axis), COMBINE[s.op]
        step = f"{s.name}_{self.axis}"  # there is one for every axis that it folds
        last = s.name if not over else step
        number = 0
        while len(parts) > 1:
            pairs = [parts[k : k + 2] for k in range(0, len(parts), 2)]
            parts = []
            for pair in pairs:
                name = pair[0]
                if len(pair) == 2:
                    name = last if len(pairs) == 1 else f"{step}_{number}"
                    number += 1
                    self.body.append(Compute(name, op, tuple(pair), s.dtype, s.dtype))
                parts.append(name)
        if over:
            self.body.append(replace(s, arg=parts[0], over=over))

    def _judge(self, s: Inside, k: int, passed: bool | None) -> None:
        """Whether a guard passes at a place, where that is known."""
        at = self._at(s.index, k)
        inside: bool | None = None
        if not at.terms and all(isinstance(d, int) for d in (at.const, s.lo, s.hi)):
            inside = hint(s.lo) <= hint(at.const) < hint(s.hi)
        if inside is False or passed is False:
            self.known[k][s.name] = False
        elif inside and passed:
            self.known[k][s.name] = True

    def _at(self, index: Affine, k: int) -> Affine:
        rest = [(a, c) for a, c in index.terms if a != self.axis]
        return affine(rest, index.const + index.coefficient(self.axis) * k)

    def _name(self, arg: Arg, k: int) -> Arg:
        return self.names[k].get(arg, arg) if isinstance(arg, str) else arg


COMBINE = {
    **{"sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum"},
    **{"any": "logical_or", "all": "logical_and"},
}
