"""Results of programs without a backward: arguments themselves, their views, their layouts."""

import pytest
import torch

import tofuse
from tofuse.errors import CaptureError


@pytest.mark.parametrize("rank", [0, 2])
def test_an_argument_returned_beside_views_of_it_is_itself(rank):
    def program(x):
        return x.view(1, *x.shape).squeeze(0), x, x.view_as(x)

    x = torch.randn([3] * rank)
    compiled = tofuse.compile(program, capture="trace")
    for _ in range(2):
        first, second, third = compiled(x)
        assert second is x and first is not x and third is not x
        assert first.data_ptr() == third.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("written", ["none", "another", "the same"])
def test_changed_layouts_of_arguments_under_no_grad(written):
    """With a write that autograd does not see, torch would return the wrong results."""

    def program(x, y):
        z = x.swapaxes_(2, 0)
        if written != "none":
            (y if written == "another" else z).neg_()
        return z.mean(), y + 1

    outcomes = []
    for run in (program, tofuse.compile(program, capture="trace")):
        torch.manual_seed(0)
        x, y = (torch.randn(shape).requires_grad_() * 1 for shape in ((2, 3, 4), ()))
        with torch.no_grad():
            try:
                outcomes.append((*run(x, y), x, y))
            except CaptureError as error:
                assert written != "none" and "no_grad" in str(error)
                return
    torch.testing.assert_close(*outcomes)
    assert outcomes[0][2].stride() == outcomes[1][2].stride()
