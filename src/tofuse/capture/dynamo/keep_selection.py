"""Guards that make a program reject calls that an earlier program of its function accepts."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import CodeType

import torch
from torch.fx import GraphModule

from tofuse.capture.fx.node_tensors import symbolic_item
from tofuse.capture.fx.sizes import SYMBOLIC
from tofuse.torch_internals.dynamo import (
    GuardFilterEntry,
    get_source,
    has_promised_range,
    source_name,
)
from tofuse.torch_internals.dynamo_guards import guard_expression

# What a program takes: sizes of tensors and numbers, by the name of the argument and the dimension,
# or NUMBER. For an earlier program, a text stands for a symbol.
Key = tuple[str, int | str]
Values = Mapping[Key, object]
Symbolic = torch.SymInt | torch.SymFloat | torch.SymBool
NUMBER = "number"
CONSTANT_GUARDS = ("CONSTANT_MATCH", "EQUALS_MATCH")


@dataclass(eq=False)
class EarlierPrograms:
    """The sizes and numbers of the programs of one function."""

    values: list[tuple[CodeType | None, dict[Key, object]]] = field(default_factory=list)

    def add(self, gm: GraphModule, inputs: Sequence[object], code: CodeType | None = None) -> None:
        """Record a program. If it has symbols, guard that no earlier program accepts its calls.

        A size or number that varies becomes a symbol, in a new program that accepts the calls of
        the earlier one, too. Dynamo would run the program that ran last, and the same call would
        get other bits. torch has a setting for this (`automatic_dynamic_exclusion_guard`), but to
        set it for our own programs takes 17 us a call.
        """
        values = _values(gm)
        for earlier in (known for owner, known in self.values if owner is code):
            differences = _differences(values, earlier)
            # a guard that does not hold for this call would specialize it
            if any(d.node.hint for d in differences) and not any(map(has_promised_range, inputs)):
                bool(reduce(operator.or_, differences))  # torch records the condition
        self.values.append((code, {k: _label(v) for k, v in values.items()}))

    def add_constants(self, guards: Iterable[GuardFilterEntry]) -> None:
        """Record numbers that are constants of the last program."""
        for guard in guards if self.values else ():
            if guard.guard_type in CONSTANT_GUARDS and type(guard.value) in (int, float):
                self.values[-1][1].setdefault((guard_expression(guard), NUMBER), guard.value)


def _values(gm: GraphModule) -> dict[Key, object]:
    """Return the sizes of tensors and the numbers that a program takes."""
    found: dict[Key, object] = {}
    for node in gm.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        name = source_name(get_source(node))
        number = symbolic_item(node) if isinstance(value, torch.Tensor) else value
        if isinstance(number, SYMBOLIC):
            found[name, NUMBER] = number
        elif isinstance(value, torch.Tensor):
            found[name, "dimensions"] = value.dim()
            found.update(((name, k), size) for k, size in enumerate(value.shape))
    # sizes are arguments beside their tensors
    sizes = {str(v) for (_, place), v in found.items() if place != NUMBER}
    return {k: v for k, v in found.items() if k[1] != NUMBER or str(v) not in sizes}


def _label(value: object) -> object:
    return str(value) if isinstance(value, SYMBOLIC) else value


def _differences(values: Values, earlier: Values) -> list[torch.SymBool]:
    """Return conditions. A call that an earlier program does not accept satisfies one of them.

    The list is empty if no call is known to suit both programs.
    """
    found: list[torch.SymBool] = []
    first: dict[str, Symbolic] = {}  # by the label of the earlier program's symbol
    for key, value in values.items():
        if key not in earlier:
            return []
        old = earlier[key]
        if not isinstance(value, SYMBOLIC):
            if not isinstance(old, str) and old != value:
                return []
        else:
            other = first.setdefault(old, value) if isinstance(old, str) else old
            difference: object = True if other is value else value != other
            found += [difference] if isinstance(difference, torch.SymBool) else []
    other_tensors = [k for k in earlier if k not in values and k[1] != NUMBER]
    return [] if other_tensors else found
