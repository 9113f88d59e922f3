"""Errors that eager raises, of the same type."""

import pytest
import torch
import torch.nn.functional as F

import tofuse

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

FLOAT_ONLY = {
    name: getattr(F, name)
    for name in [
        "gelu",
        "silu",
        "softplus",
        "mish",
        "hardswish",
        "hardsigmoid",
        "logsigmoid",
        "celu",
    ]
} | {
    "frac": torch.frac,
    "argmax": lambda x: x.bool().argmax(),
    "argmin": lambda x: (x > 0).argmin(0),
}


def test_functions_that_do_not_support_the_type_raise_eagers_error():
    """Integers are not promoted, and bools have no greatest index."""
    x = torch.tensor([1, 2, 0])
    for name, fn in FLOAT_ONLY.items():
        torch._dynamo.reset()
        with pytest.raises(Exception) as expected:
            fn(x)
        with pytest.raises(type(expected.value)):
            tofuse.compile(fn)(x)
            pytest.fail(name)
    with pytest.raises(RuntimeError, match="negative values for beta"):
        tofuse.compile(lambda x: F.smooth_l1_loss(x, x, beta=-1.0))(x.float())


@pytest.mark.parametrize("index", [9, -9])
def test_index_out_of_range_is_eagers_type_of_error(index):
    """RuntimeError of gather, IndexError of embedding and indexing."""
    x, rows = torch.randn(4, 5), torch.tensor([[0, index]])
    programs = {
        RuntimeError: (lambda x, i: x.gather(0, i) * 2, lambda x, i: x.gather(1, i).sum()),
        IndexError: (lambda x, i: F.embedding(i, x) * 2, lambda x, i: x[i[0]] * 2),
    }
    for error, fns in programs.items():
        for fn in fns:
            torch._dynamo.reset()
            for run in (fn, tofuse.compile(fn)):
                with pytest.raises(error):
                    run(x, rows)
