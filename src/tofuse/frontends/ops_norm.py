"""Batch norm, the only op that also writes into its inputs."""

from __future__ import annotations

from functools import partial

from tofuse.analysis.alias import view_chain
from tofuse.frontends.datatypes import DataType
from tofuse.frontends.elementwise_table import elementwise, elementwise_node
from tofuse.frontends.items import Node, Number, OperandLike, Rule
from tofuse.frontends.lowering import Lowering
from tofuse.frontends.ops_reduce import reduce
from tofuse.ir.dims import product


def batch_norm(
    low: Lowering,
    arg: OperandLike,
    weight: OperandLike | None = None,
    bias: OperandLike | None = None,
    running_mean: OperandLike | None = None,
    running_var: OperandLike | None = None,
    momentum: OperandLike = 0.1,
    eps: OperandLike = 1e-5,
    training: bool = True,
    channels_last: bool = False,
) -> list[Node]:
    """Return output, mean and inverse deviation; training also updates the running statistics."""
    x = low.tensor(arg)
    if x.rank < 2:
        raise low.error(f"the tensor must have at least rank 2, not {x.rank}")
    channel = x.rank - 1 if channels_last else 1
    axes = [d for d in range(x.rank) if d != channel]

    op = partial(elementwise_node, low)

    def per_channel(given: OperandLike) -> Node:
        """Reshape a tensor with one entry per channel so that it broadcasts with the operand."""
        tensor = low.tensor(given)
        low.require_equal(tensor.shape[0], x.shape[channel], "the number of channels")
        shape = tuple(tensor.shape[0] if d == channel else 1 for d in range(x.rank))
        return low.reshaped(tensor, shape)

    if training:
        count = Number(product(x.shape[d] for d in axes), DataType.Int)
        mean = op("truediv", reduce("sum", low, x, axes), count)
        deviation = op("sub", x, per_channel(mean))
        squares = reduce("sum", low, op("mul", deviation, deviation), axes)
        variance = op("truediv", squares, count)
        if running_mean is not None and running_var is not None:
            unbiased_variance = op("truediv", squares, elementwise(low, "sub", count, 1))
            for statistic, current in ((running_mean, mean), (running_var, unbiased_variance)):
                old = low.tensor(statistic)
                decayed = op("mul", old, elementwise(low, "sub", 1.0, momentum))
                new = op("add", decayed, op("mul", current, momentum))
                write_input(low, low.cast(new, old.dtype), old)
    elif running_mean is None or running_var is None:
        raise low.error("running_mean and running_var are required if training is False")
    else:
        mean, variance = low.tensor(running_mean), low.tensor(running_var)
        deviation = op("sub", x, per_channel(mean))
    inverse = op("rsqrt", op("add", variance, eps))
    out = op("mul", deviation, per_channel(inverse))
    out = out if weight is None else op("mul", out, per_channel(weight))
    out = out if bias is None else op("add", out, per_channel(bias))
    return [out, mean, inverse]


def write_input(low: Lowering, item: Node, target: Node) -> None:
    """Add an output that is written into an input."""
    if item.rank != target.rank:
        raise low.error(
            f"a result of rank {item.rank} cannot be written into an input of rank {target.rank}"
        )
    for d in range(item.rank):
        low.require_equal(
            target.shape[d], item.shape[d], f"the input and the result at dimension {d}"
        )
    number = low.arguments.index(target)
    if item.dtype is target.dtype:
        low.written.setdefault(item.value, number)
    base = view_chain(item.value, low.producers())[-1]
    if any(isinstance(a, Node) and a.value is base for a in low.arguments):
        item = low.copy(item)  # another output may be written into that input first
    low.outputs.append((item, number))


NORM: dict[str, Rule] = {"batch_norm": batch_norm}
