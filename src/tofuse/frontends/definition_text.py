"""Print a definition as Python text, and as a script that runs it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tofuse.frontends.definition import (
    AddOutput,
    Argument,
    DefineScalar,
    DefineTensor,
    DefineVector,
    OpCall,
    Ref,
    Statement,
    parameters,
)
from tofuse.frontends.inputs import Input

INDENT = "    "


def show_definition(statements: Sequence[Statement]) -> str:
    """Return the text of `def nvfuser_fusion(fd : FusionDefinition) -> None :`."""
    lines = [INDENT + show_statement(s) for s in statements] or [INDENT + "pass"]
    return "\n".join(["def nvfuser_fusion(fd : FusionDefinition) -> None :", *lines])


def show_statement(s: Statement) -> str:
    """Return a statement as one line of the body."""
    match s:
        case DefineTensor():
            more = f", stride_order={list(s.stride_order)}" if s.stride_order else ""
            return (
                f"{s.result} = fd.define_tensor(shape={list(s.shape)}, "
                f"contiguity={list(s.contiguity)}, dtype={s.dtype!r}, is_cpu={s.is_cpu}{more})"
            )
        case DefineScalar():
            value = "None" if s.value is None else show_argument(s.value)
            return f"{s.result} = fd.define_scalar({value}, dtype={s.dtype!r})"
        case DefineVector():
            entries = s.size if s.entries is None else show_argument(s.entries)
            return f"{s.result} = fd.define_vector({entries})"
        case OpCall():
            return _call(s)
        case AddOutput():
            alias = f", {s.alias}" if s.alias is not None else ""
            order = f", stride_order={list(s.stride_order)}" if s.stride_order else ""
            return f"fd.add_output({s.source}{alias}{order})"


def _call(s: OpCall) -> str:
    known = parameters(s.name).parameters
    parts: list[str] = []
    for name, value in s.arguments:
        if value is known[name].default or (value == known[name].default and value is not True):
            continue
        positional = isinstance(value, Ref) and all("=" not in p for p in parts)
        in_order = len(parts) == list(known).index(name)
        text = show_argument(value)
        parts.append(text if positional and in_order else f"{name}={text}")
    results = ", ".join(map(repr, s.results))
    return f"{results} = fd.ops.{s.name}({', '.join(parts)})"


def show_argument(value: Argument) -> str:
    """Return an argument as Python text."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(show_argument, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, complex):
        return f"complex({show_argument(value.real)}, {show_argument(value.imag)})"
    return repr(value)


def definition_script(definition: str, inputs: Sequence[Input] | None) -> str:
    """Return a script that defines the fusion and runs it on new inputs like these."""
    lines = [
        "import torch",
        "",
        "from tofuse.nvfuser import DataType, FusionDefinition",
        "",
        "",
        definition,
        "",
        "",
        "with FusionDefinition() as fd:",
        INDENT + "nvfuser_fusion(fd)",
    ]
    if inputs is not None:
        lines += ["", "inputs = ["]
        lines += [f"{INDENT}{show_input(x)}," for x in inputs]
        lines += ["]", "outputs = fd.execute(inputs)"]
    return "\n".join(lines) + "\n"


def show_input(x: Input) -> str:
    """Return text that makes an input of the same shape, strides, dtype and device."""
    if not isinstance(x, torch.Tensor):
        return show_argument(x)
    extents = [(n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)]
    count = 0 if x.numel() == 0 else 1 + sum(extents)
    place = f"device={str(x.device)!r}"
    if x.dtype is torch.float4_e2m1fn_x2:
        flat = f"torch.randint(0, 256, ({count},), dtype=torch.uint8, {place}).view({x.dtype})"
    elif (x.dtype.is_floating_point and x.dtype.itemsize > 1) or x.dtype.is_complex:
        flat = f"torch.randn(({count},), dtype={x.dtype}, {place})"
    elif x.dtype.is_floating_point:
        flat = f"torch.randn(({count},), {place}).to({x.dtype})"
    else:
        flat = f"torch.randint(0, 2, ({count},), {place}).to({x.dtype})"
    return f"{flat}.as_strided({tuple(x.shape)}, {tuple(x.stride())})"
