"""What a tensor, a scalar and a vector of a definition say about themselves."""

import torch

from tofuse.nvfuser import DataType, FusionDefinition


def test_dtype_is_an_attribute_and_a_method():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 2], dtype=DataType.Half)
        wide = fd.ops.cast(x, dtype=x.dtype())
        assert x.dtype is DataType.Half and x.dtype() is DataType.Half
        assert x.dtype == DataType.Half == wide.dtype() and x.dtype in (DataType.Half,)
        assert fd.define_scalar(2.0).dtype() is DataType.Double
        assert DataType["Half"] is DataType.Half and x.dtype().torch is torch.float16


def test_kinds_of_values():
    with FusionDefinition() as fd:
        x, n, two = fd.define_tensor([-1, 2]), fd.define_scalar(DataType.Int), fd.define_scalar(2)
        assert x.is_tensor() and fd.ops.sum(x).is_tensor()
        assert not any(s.is_tensor() for s in (n, two, x.size(0), x.shape()))
        assert n.is_symbolic() and x.size(0).is_symbolic() and x.is_symbolic()
        assert not two.is_symbolic() and not x.size(1).is_symbolic()
