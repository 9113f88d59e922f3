"""Batch norm, the one op that also writes into its inputs."""

from __future__ import annotations

from tofuse.frontends.datatypes import DataType
from tofuse.frontends.lowering import Given, Lowering, Node, Number, Rule
from tofuse.frontends.ops_more import cast
from tofuse.frontends.ops_pointwise import BINARY, UNARY, apply
from tofuse.frontends.ops_reduce import reduction
from tofuse.ir.dims import product


def batch_norm(
    low: Lowering,
    arg: Given,
    weight: Given | None = None,
    bias: Given | None = None,
    running_mean: Given | None = None,
    running_var: Given | None = None,
    momentum: Given = 0.1,
    eps: Given = 1e-5,
    training: bool = True,
    channels_last: bool = False,
) -> list[Node]:
    """Output, mean and inverse deviation; in training the running statistics are written."""
    x = low.tensor(arg)
    if x.rank < 2:
        raise low.fail(f"a tensor of rank {x.rank} has no channels")
    channel = x.rank - 1 if channels_last else 1
    over = [d for d in range(x.rank) if d != channel]

    def op(name: str, a: Given, b: Given) -> Node:
        made = apply(low, name, BINARY[name], a, b)
        assert isinstance(made, Node)
        return made

    def across(given: Given) -> Node:
        """A tensor with one entry a channel, beside the operand."""
        line = low.tensor(given)
        low.equal(line.shape[0], x.shape[channel], "the number of channels")
        shape = tuple(line.shape[0] if d == channel else 1 for d in range(x.rank))
        return low.node(low.build.reshape(line.value, shape), line.dtype)

    if training:
        count = low.number(product(x.shape[d] for d in over), DataType.Int)
        total = reduction("sum")(low, x, over)
        mean = op("truediv", total, count)  # type: ignore[arg-type]  # one tensor
        away = op("sub", x, across(mean))
        squares = reduction("sum")(low, op("mul", away, away), over)
        variance = op("truediv", squares, count)  # type: ignore[arg-type]  # one tensor
        if running_mean is not None and running_var is not None:
            wider = op("truediv", squares, _less_one(low, count))  # type: ignore[arg-type]
            for held, now in ((running_mean, mean), (running_var, wider)):
                old = low.tensor(held)
                kept = op("mul", old, apply(low, "sub", BINARY["sub"], 1.0, momentum))
                new = op("add", kept, op("mul", now, momentum))
                final = cast(low, new, old.dtype)
                assert isinstance(final, Node)
                write(low, final, old)
    elif running_mean is None or running_var is None:
        raise low.fail("without training it needs running_mean and running_var")
    else:
        mean, variance = low.tensor(running_mean), low.tensor(running_var)
        away = op("sub", x, across(mean))
    inverse = apply(low, "rsqrt", UNARY["rsqrt"], op("add", variance, eps))
    assert isinstance(inverse, Node)
    out = op("mul", away, across(inverse))
    out = out if weight is None else op("mul", out, across(weight))
    out = out if bias is None else op("add", out, across(bias))
    return [out, mean, inverse]


def _less_one(low: Lowering, count: Number) -> Given:
    less = apply(low, "sub", BINARY["sub"], count, 1)
    return less if isinstance(less, Number) else count


def write(low: Lowering, item: Node, target: Node) -> None:
    """Have the program end by writing a result into an input."""
    if item.rank != target.rank:
        raise low.fail(f"a result of rank {item.rank} for an input of rank {target.rank}")
    for d in range(item.rank):
        low.equal(target.shape[d], item.shape[d], f"the input and the result at dimension {d}")
    if any(isinstance(a, Node) and a.value is item.value for a in low.arguments):
        item = low.copy(item)
    place = next(k for k, a in enumerate(low.arguments) if a is target)
    low.outputs.append((item, place))


NORM: dict[str, Rule] = {"batch_norm": batch_norm}
