"""Ranges of integers: bits of codes, casts, and what may overflow."""

import pytest

from tests.support.kernels import kernel
from tofuse.backends.cpu.llvm.value_ranges import value_range


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("load x[i] : u8", (0, 255)),
        ("bitwise_and v0 15 of u8 : u8", (0, 15)),
        ("shift_right v0 4 of u8 : u8", (0, 15)),
        ("bitwise_or v0 256 of i32 : i32", (256, 511)),
        ("shift_left v0 4 of u8 : u8", None),
        ("add v0 1 of u8 : u8", None),
        ("sub v0 8 of i32 : i32", (-8, 247)),
        ("convert v0 of u8 : i64", (0, 255)),
        ("convert v0 of u8 : i8", None),
        ("remainder v0 7 of u8 : u8", (0, 6)),
        ("load z[i] : i64", None),
    ],
)
def test_ranges(text, expected):
    k = kernel(
        f"""kernel k(x: in u8, z: in i64, y: out i64) over i:64 {{
          v0 = load x[i] : u8
          v1 = {text}
          store y[i] 0 : i64
        }}"""
    )
    assert value_range(k, "v1") == expected
    assert value_range(k, "v1.i.3") == expected  # a copy
