"""Uninitialized memory: with deterministic algorithms it holds what eager fills it with."""

import pytest
import torch

import tofuse
from tests.support.numbers import assert_same_bits

EMPTY = {
    "empty": lambda x: torch.empty(9, dtype=x.dtype),
    "empty_like": torch.empty_like,
    "new_empty": lambda x: x.new_empty(9),
    "empty_strided": lambda x: torch.empty_strided((3, 3), (1, 3), dtype=x.dtype),
    "new_empty_strided": lambda x: x.new_empty_strided((3, 3), (1, 4)),
    "empty_permuted": lambda x: torch.empty_permuted((2, 3), (1, 0), dtype=x.dtype),
    "a part": lambda x: torch.empty(12, dtype=x.dtype)[3:7],
}
DTYPES = (torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.bool)
MODES = ((False, True), (True, True), (True, False), (False, True), (True, True))


def set_fill(fills):
    vars(torch.utils)["deterministic"].fill_uninitialized_memory = fills


@pytest.fixture
def deterministic_state():
    yield
    torch.use_deterministic_algorithms(False)
    set_fill(True)


@pytest.mark.usefixtures("deterministic_state")
def test_memory_is_filled_as_in_eager_in_each_mode():
    def program(x):
        return [f(x) for f in EMPTY.values()] + [f(x) * 1 for f in EMPTY.values()]

    for capture in ("dynamo", "trace"):
        for dtype in DTYPES:
            torch._dynamo.reset()
            x = torch.arange(9).to(dtype)
            compiled = tofuse.compile(program, hand_back=False, capture=capture)
            for algorithms, fills in MODES:
                torch.use_deterministic_algorithms(algorithms)
                set_fill(fills)
                for ours, eagers in zip(compiled(x), program(x), strict=True):
                    assert (ours.shape, ours.stride()) == (eagers.shape, eagers.stride())
                    if algorithms and fills:
                        assert_same_bits(ours, eagers)
