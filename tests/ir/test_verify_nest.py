"""Nests that read what is not computed where it runs are errors, which name the statement."""

import pytest

from tests.ir.test_parse_nest import KERNEL, LOOPS
from tofuse.errors import VerifyError
from tofuse.ir.parse_nest import parse_nest
from tofuse.ir.verify_nest import verify_nest


def test_example():
    verify_nest(parse_nest(KERNEL + LOOPS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"        v2 = add v0 v1 of f32 : f32\n": ""},
            "v2 is neither computed nor reloaded before",
        ),
        (
            {"        v2 = reload v2.keep\n": ""},
            "neither computed nor reloaded before, in 'v4 = sub",
        ),
        ({"        v5 = reload v5.keep\n": ""}, "v5 is neither computed nor reloaded before"),
        ({"      begin v3\n": "", "      end v3\n": ""}, "there is no 'begin v3' before, in 'v3"),
        ({"index [0] keys s": "index [0]"}, "no scratch array of the keys of s, in 'v1 = uniform"),
        ({"    parallel i0:": "    serial:"}, "there is no loop over i0 around, in 'v0 = load"),
        (
            {"      for i1:\n        v5 =": "      v5 =", "        store z": "      store z"},
            "over i1",
        ),
    ],
)
def test_errors_name_the_statement(changes: dict[str, str], message: str):
    loops = LOOPS
    for old, new in changes.items():
        assert loops.count(old) == 1
        loops = loops.replace(old, new)
    with pytest.raises(VerifyError) as caught:
        verify_nest(parse_nest(KERNEL + loops))
    assert message in str(caught.value)
