"""What it would cost to compute the pieces of a join where the join is, and values of which
windows are read at each of the windows' places."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from tofuse.ir.dims import hint
from tofuse.ir.graph import Op, Value
from tofuse.ir.region import Strided
from tofuse.ops.table import Pattern, opdef

JOINED_WORK = 40.0  # additions an element, about what writing and reading a piece takes
LEAST_OVERLAP = 1.5


def dear_join(
    joins: Sequence[Op], inside: Container[Op], sources: Mapping[Op, list[Op]]
) -> str | None:
    """Why a kernel may not hold these joins: every element computes all pieces, and picks one."""
    for join in joins:
        left = JOINED_WORK / (1 - 1 / len(join.inputs)) if len(join.inputs) > 1 else math.inf
        seen: set[Op] = set()
        work = [join]
        while work and left >= 0:
            new = [s for s in sources[work.pop()] if s in inside and s not in seen]
            seen.update(new)
            work += new
            left -= sum(opdef(s.kind).cost for s in new)
        if left < 0:
            return f"every element of the {join.kind} would compute all pieces"
    return None


def is_join(op: Op) -> bool:
    return opdef(op.kind).pattern is Pattern.JOIN


@dataclass
class Windows:
    """How often the parts that are read of a value hold each of its elements."""

    users: Mapping[Value, Sequence[Op]]
    view: Mapping[Op, bool]
    storage: Mapping[Value, Strided]
    known: dict[Value, float] = field(default_factory=dict)

    def dear(
        self, producer: Op, consumer: Op, ops: Sequence[Op], sources: Mapping[Op, list[Op]]
    ) -> str | None:
        """Why a value is computed before its windows are read: each place would compute it anew."""
        times = self._overlap(producer.result) if producer.results else 1.0
        if is_join(consumer) and len(consumer.inputs) == 1:
            times *= self._overlap(consumer.result)
        if times < LEAST_OVERLAP:
            return None
        inside = set(ops)
        left, seen, work = JOINED_WORK / (times - 1), {producer}, [producer]
        while work and left >= 0:
            op = work.pop()
            left -= opdef(op.kind).cost
            new = [s for s in sources[op] if s in inside and s not in seen]
            new = [s for s in new if opdef(s.kind).pattern in (Pattern.ELEMENTWISE, Pattern.JOIN)]
            seen.update(new)
            work += new
        if left >= 0:
            return None
        return f"read in windows: each element would be computed {times:.0f} times"

    def _overlap(self, value: Value) -> float:
        if value not in self.known:
            parts: dict[tuple[object, ...], int] = {}
            work = [value]
            while work:
                v = work.pop()
                readers = self.users.get(v, ())
                work += [op.result for op in readers if self.view[op]]
                place = self.storage.get(v)
                if place is not None and not all(self.view[op] for op in readers):
                    spread = zip(v.shape, place.strides, strict=True)
                    elements = math.prod(hint(n) for n, step in spread if step != 0)
                    parts[place.offset, place.strides] = elements
            offsets = {offset for offset, _ in parts}
            whole = max(1, hint(value.type.numel))
            self.known[value] = sum(parts.values()) / whole if len(offsets) > 1 else 1.0
        return self.known[value]
