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


def test_one_of_two_values_has_the_range_of_both():
    k = kernel(
        """kernel k(x: in u8, y: out i64) over i:64 {
          v0 = load x[i] : u8
          v1 = bitwise_and v0 15 of u8 : u8
          v2 = shift_right v0 3 of u8 : u8
          c = in_range [i] 3 20 : b1
          v3 = where c v1 v2 of u8 : u8
          v4 = where c v1 3 of u8 : u8
          store y[i] 0 : i64
        }"""
    )
    assert (value_range(k, "v3"), value_range(k, "v4")) == ((0, 31), (0, 15))
