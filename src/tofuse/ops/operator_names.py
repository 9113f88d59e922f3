"""Look up names of PyTorch's operators."""

from __future__ import annotations

import difflib

import torch


def is_operator(op: str) -> bool:
    """Whether an operator such as 'aten.mm' or 'aten.mm.out' exists.

    True for other libraries than aten, which may be registered later.
    """
    library, name, *overload = op.split(".")
    if library != "aten":
        return library != "torch"
    found = getattr(torch.ops.aten, name, None)
    return found is not None and (not overload or overload[0] in found.overloads())


def nearest_operator(op: str) -> str | None:
    """Return an existing ATen operator with a similar name; None if there is none."""
    name = op.split(".")[1]
    near = difflib.get_close_matches(name, dir(torch), 3)
    return next((f"aten.{n}" for n in (name, *near) if is_operator(f"aten.{n}")), None)
