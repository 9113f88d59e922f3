"""Names of PyTorch's operators."""

from __future__ import annotations

import difflib

import torch


def is_known(op: str) -> bool:
    """Whether there is an operator, 'aten.mm' or 'aten.mm.out'; those of other libraries than
    PyTorch's own may be registered later."""
    library, name, *overload = op.split(".")
    if library != "aten":
        return library != "torch"
    found = getattr(torch.ops.aten, name, None)
    return found is not None and (not overload or overload[0] in found.overloads())


def nearest(op: str) -> str | None:
    """An operator with a name like this one."""
    name = op.split(".")[1]
    near = difflib.get_close_matches(name, dir(torch._C._VariableFunctions), 3)
    return next((f"aten.{n}" for n in (name, *near) if is_known(f"aten.{n}")), None)
