"""Build and run definitions, and definitions parsed from their text."""

import torch

from tofuse.nvfuser import DataType, FusionDefinition

WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def build_definition(body, inputs, **options):
    """Return a definition whose outputs are those of `body(fd, *inputs)`."""
    with FusionDefinition() as fd:
        arguments = [
            fd.from_pytorch(x, **options) if is_tensor(x) else define_scalar_like(fd, x)
            for x in inputs
        ]
        outputs = body(fd, *arguments)
        for output in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
            fd.add_output(output)
    return fd


def define_scalar_like(fd, x):
    kinds = {bool: DataType.Bool, int: DataType.Int, float: DataType.Double}
    return fd.define_scalar(dtype=kinds.get(type(x), DataType.ComplexDouble))


def is_tensor(x):
    return isinstance(x, torch.Tensor)


def definition_from_text(fd):
    """Return a new definition made from the text of another."""
    names: dict = {"torch": torch, "FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition() as second:
        names["nvfuser_fusion"](second)
    return second


def run(body, inputs, **options):
    """Return the outputs of a definition, and check that its text gives the same bits."""
    fd = build_definition(body, inputs, **options)
    outputs = fd.execute(inputs)
    copy = definition_from_text(fd)
    assert repr(copy) == repr(fd)
    repeated = copy.execute(inputs)
    torch.testing.assert_close(repeated, outputs, rtol=0, atol=0, equal_nan=True)
    return outputs


def check(body, expected, inputs, rtol=None, atol=None, **options):
    """Check that the outputs of a definition equal `expected(*inputs)`."""
    outputs = run(body, inputs, **options)
    wanted = expected(*inputs)
    wanted = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted]
    torch.testing.assert_close(outputs, wanted, rtol=rtol, atol=atol, equal_nan=True)


def promote_half(x):
    """Return a half-precision tensor as float32, anything else unchanged."""
    return x.to(WIDE.get(x.dtype, x.dtype)) if is_tensor(x) else x
