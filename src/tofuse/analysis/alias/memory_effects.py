"""Which ops share memory with an operand, or write: by kind, and for PyTorch's by their schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from tofuse.ir.graph import Op, Value
from tofuse.ops.reference import resolve_operator
from tofuse.ops.table import OPS, Pattern
from tofuse.torch_internals.operators import OpOverload, schema_of

ELIMINATED = "eliminated"  # the attribute of a concat whose operands are written into its result

# Operators without an out variant whose results never share memory with an operand.
EXCLUSIVE_RESULTS = frozenset(
    f"{name}.default"
    for name in (
        "aten.convolution",
        "aten.convolution_backward",
        "aten._scaled_dot_product_flash_attention_for_cpu",
        "aten._scaled_dot_product_flash_attention_for_cpu_backward",
        "tofuse.packed_convolution",
    )
)

# Operators with an operand in a layout of the library's own, and its position. Such a tensor has no
# strides.
PACKED_OPERANDS = {"tofuse.packed_convolution.default": 1}

# Operators that return their first operand with something added or replaced: the result may be
# written there.
UPDATING = (
    "aten.addmm.",
    "aten.baddbmm.",
    "aten.index_add.",
    "aten.index_copy.",
    "aten.index_put.",
    "aten.scatter.",
    "aten.scatter_add.",
)

# Operators whose result depends on the storage offset of their operand.
OFFSET_SENSITIVE = frozenset(
    ("aten.as_strided.default", "aten.view.dtype", "aten.view_as_complex.default")
)

# Collectives of torch.distributed run beside the program until it waits for their result.
COLLECTIVES = ("_c10d_functional.", "_c10d_functional_autograd.")
WAIT = "_c10d_functional.wait_tensor"

# Operators that return their operand's memory, although their schema declares no alias.
UNDECLARED_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "_unsafe_view.default",
        "lift.default",
        "unsafe_split.Tensor",
        "unsafe_split_with_sizes.default",
    )
)


@cache
def returns_view(target: str) -> bool:
    """Whether results of PyTorch's operator are views of its first argument, as its schema says.

    An operator that writes into that argument does not count.
    """
    if target in UNDECLARED_VIEWS:
        return True
    if not target.startswith("aten.") or target.count(".") != 2:
        return False
    try:
        operator = resolve_operator(target)
    except AttributeError:  # a graph that was read from text can name any
        return False
    if not isinstance(operator, OpOverload):
        return False
    returned = [r.alias_info for r in schema_of(operator).returns]
    return any(alias is not None and not alias.is_write for alias in returned)


def is_view(op: Op) -> bool:
    """Whether an op is a view of the graph IR, which reads no elements."""
    return OPS[op.kind].pattern in (Pattern.VIEW, Pattern.BROADCAST)


def view_ops(v: Value, producers: Mapping[Value, Op]) -> Iterator[Op]:
    """Yield the graph's view that makes `v`, the one that makes its operand, and so on."""
    while (op := producers.get(v)) is not None and is_view(op):
        yield op
        v = op.inputs[0]


def is_aten_view(op: Op) -> bool:
    """Whether an op is a call of a PyTorch operator that returns a view of its operand."""
    return op.kind == "opaque" and bool(op.inputs) and returns_view(str(op.attr("target")))


def viewed_operand(op: Op) -> Value | None:
    """Return the operand whose memory an op's results may share; None if they have their own."""
    return op.inputs[0] if is_view(op) or is_aten_view(op) else None


def is_eliminated_concat(op: Op) -> bool:
    """Whether an op is a concat whose operands are written into its result, so nothing runs."""
    return (ELIMINATED, True) in op.attrs


def updates_operand(target: str) -> bool:
    """Whether PyTorch's operator may write its result into its first operand."""
    return target.startswith(UPDATING)


def starts_collective(target: str) -> bool:
    """Whether PyTorch's operator starts a collective."""
    return target.startswith(COLLECTIVES) and not target.startswith(WAIT)


def is_collective(op: Op) -> bool:
    """Whether an op starts a collective."""
    return op.kind == "opaque" and starts_collective(str(op.attr("target")))


def is_wait(op: Op) -> bool:
    """Whether an op waits for a collective: its result is the collective's."""
    return op.kind == "opaque" and str(op.attr("target")).startswith(WAIT)


def is_communication(op: Op) -> bool:
    """Whether an op starts a collective or waits for one."""
    return is_collective(op) or is_wait(op)


def has_effect(op: Op) -> bool:
    """Whether an op may write into tensors, or must run for another reason than its results."""
    return op.kind == "opaque" and ("effect", True) in op.attrs


def packed_operand(op: Op) -> Value | None:
    """Return the operand that an op reads in the library's own layout; None if it has none."""
    position = PACKED_OPERANDS.get(str(op.attr("target"))) if op.kind == "opaque" else None
    return None if position is None else op.inputs[position]
