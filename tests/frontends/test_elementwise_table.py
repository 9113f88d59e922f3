"""Shapes and types of elementwise ops on operands that differ in them."""

import pytest
import torch

from tests.frontends.support import build_definition, check
from tofuse.errors import DefinitionError
from tofuse.nvfuser import DataType


def test_operands_of_lower_rank_broadcast_from_the_left():
    a, b = torch.randn((3, 4, 5)), torch.randn((5,))
    c, mask = torch.randn((4, 1)), torch.randn((4, 5)) > 0
    check(
        lambda fd, a, b, c, m: [
            fd.ops.add(a, b),
            fd.ops.sub(b, a),
            fd.ops.atan2(c, b),
            fd.ops.nextafter(a, b),
            fd.ops.le(b, a),
            fd.ops.where(m, a, b),
            fd.ops.where(m, c, 0.5),
            fd.ops.lerp(b, c, a),
            fd.ops.addcmul(b, a, c, 2.0),
            fd.ops.threshold(a, c, b),
            fd.ops.clamp(b, c, a),
            fd.ops.complex(c, a),
            fd.ops.add_alpha(b, c, 2.0),
        ],
        lambda a, b, c, m: [
            a + b,
            b - a,
            torch.atan2(c, b),
            torch.nextafter(a, b),
            b <= a,
            torch.where(m, a, b),
            torch.where(m, c, 0.5),
            torch.lerp(b, c, a),
            torch.addcmul(b, a, c, value=2.0),
            torch.where(a <= c, b, a),
            b.clamp(c, a),
            torch.complex(*torch.broadcast_tensors(c, a)),
            torch.add(b, c, alpha=2.0),
        ],
        [a, b, c, mask],
    )
    empty, row = torch.ones(2, 0, 3), torch.ones(3)
    check(lambda fd, e, r: fd.ops.mul(e, r), lambda e, r: e * r, [empty, row])
    fd = build_definition(lambda fd, x, y: fd.ops.add(x, y), [a, b])
    with pytest.raises(DefinitionError, match=r"shapes \[i0d0, i0d1, i0d2\] and \[i1d0\] at dim"):
        fd.execute([a, b[:4]])


def test_where_keeps_half_types_and_refuses_a_condition_of_numbers():
    half, wide = torch.randn((4,), dtype=torch.float16), torch.randn((4,), dtype=torch.float64)
    eighth, mask = torch.randn((4,)).to(torch.float8_e5m2), torch.randn((4,)) > 0
    check(
        lambda fd, h, w, e, m: [
            fd.ops.where(m, h, h),
            fd.ops.where(m, h, 1),
            fd.ops.where(m, h, w),
            fd.ops.where(m, h, fd.ops.cast(h, DataType.BFloat16)),
            fd.ops.where(m, e, e),
            fd.ops.where(True, h, 0.0),
        ],
        lambda h, w, e, m: [
            torch.where(m, h, h),
            torch.where(m, h, 1),
            torch.where(m, h, w),
            torch.where(m, h, h.bfloat16()),
            torch.where(m, e.float(), e.float()).to(torch.float8_e5m2),
            h,
        ],
        [half, wide, eighth, mask],
    )
    for condition in (half, torch.ones(4, dtype=torch.int32)):
        with pytest.raises(DefinitionError, match="where: the condition must have type Bool"):
            build_definition(lambda fd, c, x: fd.ops.where(c, x, x), [condition, half])
