"""Tile programs that read what is not computed are errors, which name the statement."""

import pytest

from tests.ir.test_parse_tile import KERNEL, LAUNCHES
from tofuse.errors import VerifyError
from tofuse.ir.parse_tile import parse_tile
from tofuse.ir.verify_tile import verify_tile


def test_example():
    verify_tile(parse_tile(KERNEL + LAUNCHES))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("workspace w1: f32[406]\n", "", "w1 is neither a buffer of the program nor a workspace"),
        ("    v2 = sub v0 v1 of f32 : f32\n", "", "v2 is not computed before, in 'v3 = reduce"),
        (" reduces v3", "", "no loop of launch k_part reduces v3"),
        ("whole p0/2; grid i1/64", "whole p0/2", "launch k_combine has no tile of i1"),
        ("    v3 = reduce argmax<i0> v2 at [i0] : i64\n", "", "v3 is not in the loop that reduces"),
    ],
)
def test_errors_name_the_statement(old: str, new: str, message: str):
    assert old in LAUNCHES
    program = parse_tile(KERNEL + LAUNCHES.replace(old, new, 1))
    with pytest.raises(VerifyError) as caught:
        verify_tile(program)
    assert message in str(caught.value)
