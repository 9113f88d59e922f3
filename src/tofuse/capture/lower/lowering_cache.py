"""A call like an earlier one becomes a copy of what that became: programs repeat themselves."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Union

import torch

from tofuse.capture.lower.builder import Builder
from tofuse.capture.lower.call import Argument, Call
from tofuse.ir.graph import Op, Value

Results = Union[Value, list[Union[Value, None]]]  # noqa: UP007  (evaluated at run time)


@dataclass(frozen=True)
class Template:
    """The ops of a call: what they read of its operands, and the names they have from counting."""

    ops: tuple[Op, ...]
    operands: tuple[Value, ...]
    results: Results
    base: int  # names of values in between count from here
    count: int


@dataclass
class Repeats:
    """The calls of one program so far."""

    build: Builder
    known: dict[Hashable, Template] = field(default_factory=dict)

    def key(self, call: Call, operands: dict[Value, int]) -> Hashable | None:
        """Equal for calls that become the same ops; None where sizes are symbols.

        `operands` gets the tensors that the call reads, each once, in order.
        """
        made = call.node.meta["val"]
        outputs = [_shown(t) for t in (made if isinstance(made, (list, tuple)) else (made,))]
        if None in outputs:
            return None
        try:
            given = tuple((name, self._shown(x, operands)) for name, x in call.arguments.items())
        except _Symbolic:
            return None
        asked = frozenset(u.args[1:] for u in call.node.users) if len(outputs) > 1 else None
        return str(call.node.target), given, tuple(outputs), asked

    def learn(
        self, key: Hashable, operands: Iterable[Value], results: Results, mark: int, base: int
    ) -> None:
        """Remember what a call became: the ops from `mark` on, named from `base` on."""
        ops = tuple(self.build.ops[mark:])
        inside = {*operands, *(r for op in ops for r in op.results)}
        if all(inside.issuperset(op.inputs) for op in ops):
            count = self.build.count - base
            self.known[key] = Template(ops, tuple(operands), results, base, count)

    def again(self, template: Template, operands: Iterable[Value], name: str) -> Results:
        """Append the ops of an earlier call for other operands; `name` is the call's own."""
        build, old = self.build, template.results
        now = dict(zip(template.operands, operands, strict=True))
        finals = {old: name} if isinstance(old, Value) else {}
        if isinstance(old, list):
            finals = {v: f"{name}_r{k}" for k, v in reversed(list(enumerate(old))) if v}
        for op in template.ops:
            results = []
            for r in op.results:
                now[r] = Value(r.type, finals.get(r) or self._counted(r, template), r.strides)
                results.append(now[r])
                if r in build.constants:
                    build.constants[now[r]] = build.constants[r]
            read = tuple(now[x] if isinstance(x, Value) else x for x in op.operands)
            build.ops.append(Op(op.kind, read, tuple(results), op.attrs, build.loc))
        build.count += template.count
        return now[old] if isinstance(old, Value) else [v and now[v] for v in old]

    def _counted(self, value: Value, template: Template) -> str:
        """The name that the builder would give in the place of an earlier one."""
        return f"v{int(value.name.removeprefix('v')) - template.base + self.build.count}"

    def _shown(self, x: Argument, operands: dict[Value, int]) -> Hashable:
        """What a rule can see of an argument."""
        if isinstance(x, Value):
            constant = self.build.constants.get(x)
            place = operands.setdefault(x, len(operands))
            return place, x.type, x.strides, constant and constant.key
        if isinstance(x, (list, tuple)):
            return tuple(self._shown(y, operands) for y in x)
        if isinstance(x, FIXED):
            return type(x), repr(x)  # text tells 0.0 from -0.0, and nan equals itself
        raise _Symbolic


class _Symbolic(Exception):
    """A number that is not known when compiling."""


def _shown(value: object) -> Hashable | None:
    """What a rule can see of a result; None where it is no tensor of fixed sizes."""
    if not isinstance(value, torch.Tensor):
        return None
    shape, strides = tuple(value.shape), value.stride()
    if not all(isinstance(n, int) for n in (*shape, *strides)):
        return None
    return shape, strides, value.dtype, str(value.device)


FIXED = (
    bool,
    int,
    float,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
