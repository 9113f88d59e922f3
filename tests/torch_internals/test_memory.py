"""Memory is reused only if counts show each owner; the slow ways make the same tensors."""

import itertools

import pytest
import torch

from tofuse.torch_internals import memory
from tofuse.torch_internals.memory import counts_show_owners


def test_counts_of_this_torch_show_owners():
    assert counts_show_owners()


CALLS = itertools.count()


@pytest.mark.parametrize(
    "counts",
    [
        {"storage_count": lambda key: 1},
        {"storage_count": lambda key: next(CALLS)},
        {"references": lambda x: 2},
        {"tensor_count": lambda tensor: 2},
    ],
    ids=["storage constant", "storage grows", "references constant", "tensor constant"],
)
def test_other_counts_switch_reuse_off(counts):
    assert not counts_show_owners(**counts)


def test_a_reinterpreted_tensor_is_no_view_but_shares_memory():
    source = torch.arange(12.0)[2:].requires_grad_()
    for make in (memory.reinterpret_tensor, memory._reinterpret_tensor):
        result = make(source, (2, 3), (1, 2), 1)
        torch.testing.assert_close(result, source.detach().as_strided((2, 3), (1, 2), 3))
        assert result.data_ptr() == source.data_ptr() + 4
        assert not result.requires_grad and result._base is None
        before = source._version
        result.add_(1)
        assert source._version == before
