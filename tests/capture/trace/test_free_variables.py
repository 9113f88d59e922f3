"""What the first run of a traced function, on fake tensors, finds out."""

import pytest
import torch

import tofuse
from tofuse.errors import CaptureError

GROWING = {
    "out= of an empty view": lambda x, y: torch.add(x, x, out=x[:0].view(0)),
    "out= of a view of a new tensor": lambda x, y: torch.mul(x, 2, out=torch.empty(5)[:0]),
    "out= of an argument": lambda x, y: torch.add(x, x, out=y),
    "resize_ of an argument": lambda x, y: y.resize_(4).fill_(1),
}


@pytest.mark.parametrize("name", GROWING)
def test_growing_arguments_and_views_is_an_error(name):
    with pytest.raises(
        CaptureError, match=r"enlarges an argument or a view \(.*test_free_variables"
    ):
        tofuse.compile(GROWING[name], capture="trace")(torch.randn(2, 3), torch.empty(0))


def test_a_new_tensor_may_grow():
    def program(x):
        result = torch.empty(0)
        torch.add(x, x, out=result)
        return result, result + 1

    x = torch.randn(2, 3)
    torch.testing.assert_close(tofuse.compile(program, capture="trace")(x), program(x))
