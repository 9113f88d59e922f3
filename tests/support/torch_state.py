"""A snapshot of everything in torch that could be assigned, by identity; and what has changed.

Compared are the attributes of modules and of classes, the kernels of operators, decompositions, and
the values of configurations. Not compared are the contents of other tables, such as torch's caches
and registries, the submodules that a module gets when they are imported, and `COUNTERS`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import ModuleType

import torch
from torch._decomp import global_decomposition_table
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._config_module import ConfigModule

State = dict[tuple[str, str], object]  # by owner and attribute
MISSING = object()


def snapshot() -> State:
    """Return the state of torch's modules, classes, operators, tables and configurations."""
    state: State = {}
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] not in ("torch", "functorch"):
            continue
        if isinstance(module, ConfigModule):
            state |= _values(name, _settings(module))
            continue
        state |= _values(name, vars(module))
        for value in list(vars(module).values()):
            if isinstance(value, type) and vars(value).get("__module__") == name:
                state |= _values(f"{name}.{value.__qualname__}", vars(value))
    for op in _operators():
        state |= _values(f"kernels of {op}", {str(k): v for k, v in op.py_kernels.items()})
    for kind, table in global_decomposition_table.items():
        state |= _values(f"table {kind}", {str(k): v for k, v in table.items()})
    return state


def differences(before: State, after: State) -> set[tuple[str, str]]:
    """Return what has another value, is gone, or is new in an owner that was there before."""
    owners = {owner for owner, _ in before}
    changed = {key for key, value in before.items() if after.get(key, MISSING) is not value}
    new = {key for key in after if key not in before and key[0] in owners}
    new = {key for key in new if not isinstance(after[key], ModuleType)}
    return {(owner, name) for owner, name in changed | new if name not in COUNTERS}


def _values(owner: str, attributes: Mapping[str, object]) -> State:
    return {(owner, name): value for name, value in list(attributes.items())}


def _settings(config: ConfigModule) -> Mapping[str, object]:
    return {name: _constant(value) for name, value in config.get_config_copy().items()}


def _constant(value: object) -> object:
    """Return one object for equal settings, which torch copies."""
    return CONSTANTS.setdefault(repr(value), value)


def _operators() -> Iterator[OpOverload]:
    for packet in list(vars(torch.ops.aten).values()):
        if isinstance(packet, OpOverloadPacket):
            yield from (v for v in list(vars(packet).values()) if isinstance(v, OpOverload))


CONSTANTS: dict[str, object] = {}
COUNTERS = ("cache_hits", "cache_misses", "__warningregistry__")
