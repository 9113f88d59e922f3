"""Builds definitions, runs them, and runs what their text defines again."""

import torch

from tofuse.nvfuser import DataType, FusionDefinition

WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def define(body, inputs, **options):
    """A definition whose `body(fd, *tensors)` returns its outputs."""
    with FusionDefinition() as fd:
        given = [fd.from_pytorch(x, **options) if is_tensor(x) else scalar(fd, x) for x in inputs]
        outputs = body(fd, *given)
        for output in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
            fd.add_output(output)
    return fd


def scalar(fd, x):
    kinds = {bool: DataType.Bool, int: DataType.Int, float: DataType.Double}
    return fd.define_scalar(dtype=kinds.get(type(x), DataType.ComplexDouble))


def is_tensor(x):
    return isinstance(x, torch.Tensor)


def again(fd):
    """The definition that the text of another one gives."""
    names: dict = {"torch": torch, "FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as second:
        names["nvfuser_fusion"](second)
    return second


def run(body, inputs, **options):
    """The outputs of a definition; its text gives the same bits."""
    fd = define(body, inputs, **options)
    outputs = fd.execute(inputs)
    copy = again(fd)
    assert repr(copy) == repr(fd)
    repeated = copy.execute(inputs)
    torch.testing.assert_close(repeated, outputs, rtol=0, atol=0, equal_nan=True)
    return outputs


def check(body, expected, inputs, rtol=None, atol=None, **options):
    """The outputs of a definition are what `expected(*inputs)` gives."""
    outputs = run(body, inputs, **options)
    wanted = expected(*inputs)
    wanted = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted]
    torch.testing.assert_close(outputs, wanted, rtol=rtol, atol=atol, equal_nan=True)


def widened(x):
    """What an operand counts as: halves as float32."""
    return x.to(WIDE.get(x.dtype, x.dtype)) if is_tensor(x) else x
