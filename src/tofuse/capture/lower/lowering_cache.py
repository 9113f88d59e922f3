"""A memo of lowered calls: a call equal to an earlier one becomes a copy of its ops."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Union

import torch

from tofuse.capture.lower.builder import Builder
from tofuse.capture.lower.call import AtenCall
from tofuse.capture.lower.opaque import call_arguments
from tofuse.errors import CaptureError
from tofuse.ir.graph import Op, Value

LoweredResults = Union[Value, list[Union[Value, None]]]  # noqa: UP007  (evaluated at run time)


@dataclass(frozen=True)
class CachedLowering:
    """The ops of a lowered call, its operands, its results and the range of its value names."""

    ops: tuple[Op, ...]
    operands: tuple[Value, ...]
    results: LoweredResults
    first_number: int  # of the names of intermediate values
    count: int  # of such names


@dataclass
class LoweringCache:
    """The lowered calls of one program."""

    build: Builder
    entries: dict[Hashable, CachedLowering] = field(default_factory=dict)

    def key(self, call: AtenCall, operands: list[Value]) -> Hashable | None:
        """Return a key that is equal for calls with equal ops; None with symbolic sizes.

        Add the tensors that the call reads to `operands`, each once, in order.
        """
        value = call.node.meta["val"]
        results = [
            _result_key(t) for t in (value if isinstance(value, (list, tuple)) else (value,))
        ]
        if None in results:
            return None
        try:
            tensors, arguments = call_arguments((), call.arguments)
        except CaptureError:
            return None
        if arguments.symbols:
            return None
        operands += tensors
        constants = [self.build.constants.get(v) for v in tensors]
        values = tuple(
            (v.type, v.strides, c and c.key) for v, c in zip(tensors, constants, strict=True)
        )
        used = frozenset(u.args[1:] for u in call.node.users) if len(results) > 1 else None
        return str(call.node.target), arguments, values, tuple(results), used

    def store(
        self,
        key: Hashable,
        operands: Iterable[Value],
        results: LoweredResults,
        start: int,
        first_number: int,
    ) -> None:
        """Store a call's ops, from `start` on; their values are numbered from `first_number`."""
        ops = tuple(self.build.ops[start:])
        available = {*operands, *(r for op in ops for r in op.results)}
        if all(available.issuperset(op.inputs) for op in ops):
            count = self.build.value_count - first_number
            self.entries[key] = CachedLowering(ops, tuple(operands), results, first_number, count)

    def replay(
        self, cached: CachedLowering, operands: Iterable[Value], name: str
    ) -> LoweredResults:
        """Append the ops of a cached call for other operands; `name` is the new call's."""
        build, old = self.build, cached.results
        new = dict(zip(cached.operands, operands, strict=True))
        result_names = {old: name} if isinstance(old, Value) else {}
        if isinstance(old, list):
            result_names = {v: f"{name}_r{k}" for k, v in reversed(list(enumerate(old))) if v}
        for op in cached.ops:
            results = []
            for r in op.results:
                value_name = result_names.get(r) or self._renumbered_name(r, cached)
                new[r] = Value(r.type, value_name, r.strides)
                results.append(new[r])
                if r in build.constants:
                    build.constants[new[r]] = build.constants[r]
            op_operands = tuple(new[x] if isinstance(x, Value) else x for x in op.operands)
            build.ops.append(Op(op.kind, op_operands, tuple(results), op.attrs, build.loc))
        build.value_count += cached.count
        return new[old] if isinstance(old, Value) else [v and new[v] for v in old]

    def _renumbered_name(self, value: Value, cached: CachedLowering) -> str:
        """Return the name that the builder would give to this value now."""
        number = int(value.name.removeprefix("v")) - cached.first_number
        return f"v{number + self.build.value_count}"


def _result_key(value: object) -> Hashable | None:
    """Return what a rule can read of a result; None unless it is a tensor of static sizes."""
    if not isinstance(value, torch.Tensor):
        return None
    shape, strides = tuple(value.shape), value.stride()
    if not all(isinstance(n, int) for n in (*shape, *strides)):
        return None
    return shape, strides, value.dtype, str(value.device)
