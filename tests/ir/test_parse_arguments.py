"""Call arguments and size expressions print, and parse to the same data."""

import math
from random import Random

import pytest

from tests.support.call_arguments import random_arguments, random_size
from tofuse.errors import ParseError
from tofuse.ir.call_arguments import (
    CallArgument,
    CallArguments,
    OperandRef,
    TorchConstant,
)
from tofuse.ir.dims import symbol
from tofuse.ir.line_reader import LineReader
from tofuse.ir.parse_arguments import parse_arguments, read_size


@pytest.mark.parametrize("in_plan", [False, True])
def test_random_arguments_round_trip(in_plan: bool):
    random = Random(7)
    for _ in range(3_000):
        arguments = random_arguments(random, in_plan)
        text = repr(arguments)
        assert parse_arguments(text) == arguments, text
        assert "\n" not in text


def test_random_sizes_round_trip():
    random = Random(8)
    for _ in range(2_000):
        text = repr(random_size(random, 4))
        assert repr(read_size(LineReader(1, text))) == text


def test_the_text_is_what_people_read():
    text = "$0, None, [1, s0], [[$1, $0], []], 1+2*s0, s0 // 2, dtype=torch.int64, scale=-inf"
    arguments = parse_arguments(text)
    assert repr(arguments) == text
    assert arguments.operand_indices == (0, 1, 0) and arguments.symbols == ("s0",)
    assert arguments.positional[2] == (1, symbol("s0"))
    assert arguments.keyword == (("dtype", TorchConstant("int64")), ("scale", -math.inf))


def test_equality_is_to_the_bit():
    assert CallArguments((math.nan,)) == CallArguments((float("nan"),))
    different: tuple[CallArgument, ...] = (0.0, -0.0, 0, False, 1, True, 1.0, 1 + 0j, "1", (1,))
    assert len({CallArguments((a,)) for a in different}) == len(different)


def test_operands_are_replaced_everywhere():
    arguments = parse_arguments("$0, [$1, None, [$0]], '$0', other=$2")
    shifted = arguments.map_operands(lambda k: OperandRef(k + 1))
    assert repr(shifted) == "$1, [$2, None, [$1]], '$0', other=$3"
    renamed = parse_arguments("t_x, [t_x2], out=t_x").renamed("t_x", "t_y")
    assert repr(renamed) == "t_y, [t_x2], out=t_y"


OTHER_PYTHON = ("$0, (", "f'{x}'", "open('x')", "torch.device(1)", "x.y", "$0 + 1")


@pytest.mark.parametrize("text", OTHER_PYTHON)
def test_other_python_is_rejected(text: str):
    with pytest.raises(ParseError):
        parse_arguments(text)


def test_tensors_that_a_call_comes_after_are_read_but_not_passed():
    arguments = parse_arguments("$0, 2, after=[$1, $2]")
    assert (arguments.positional, arguments.keyword) == ((OperandRef(0), 2), ())
    assert arguments.operand_indices == (0, 1, 2)
    assert repr(arguments) == "$0, 2, after=[$1, $2]"
    assert arguments != parse_arguments("$0, 2")
    in_plan = parse_arguments("t_x, after=[t_y]").renamed("t_y", "t_z")
    assert in_plan.tensor_names == ("t_x", "t_z")
    with pytest.raises(ParseError, match="a list of tensors expected after"):
        parse_arguments("$0, after=[1]")
