"""Data types: what half precision holds."""

import pytest
import torch

from tests.support.numbers import TORCH_DTYPES
from tofuse.ir.types import DType


@pytest.mark.parametrize("dtype", [d for d in DType if d.fits_half])
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_half_precision_holds_every_byte(dtype, half):
    codes = torch.arange(2 if dtype is DType.BOOL else 256).to(torch.uint8)
    values = codes.view(TORCH_DTYPES[dtype]).float()
    torch.testing.assert_close(values.to(half).float(), values, rtol=0, atol=0, equal_nan=True)


def test_what_half_precision_does_not_hold():
    assert not any(d.fits_half for d in DType if d.itemsize > 1)
