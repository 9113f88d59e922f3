"""Tilings as text, and the errors of other text."""

import pytest

from tests.support.tilings import parse_tiling_choice
from tofuse.errors import ParseError
from tofuse.ir.tile import Tile, Tiling, TilingChoice

SPLIT = Tiling((Tile(("i0", "i1"), 8, "split"), Tile(("i2",), 64, "whole")), 4, 3, 2)
PRODUCT = Tiling((Tile(("i0",), 64, "grid"), Tile(("i1",), 16, "loop")), 8, swizzle=8)


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (TilingChoice(), ""),
        (TilingChoice((), separate=True), "separate"),
        (TilingChoice((Tiling((), 1),)), "warps 1"),
        (
            TilingChoice((SPLIT, PRODUCT), separate=True),
            "separate | split i0,i1/8; whole i2/64; warps 4; splits 3; stages 2"
            " | grid i0/64; loop i1/16; warps 8; swizzle 8",
        ),
    ],
)
def test_a_choice_is_printed_and_parsed(choice: TilingChoice, text: str):
    assert repr(choice) == text
    assert parse_tiling_choice(text) == choice


@pytest.mark.parametrize(
    "text",
    [
        "grid i0/8",
        "warps 1; warps 2",
        "warps x",
        "row i0/8; warps 1",
        "grid /8; warps 1",
        "warps 1 |",
    ],
)
def test_other_text_is_an_error(text: str):
    with pytest.raises(ParseError):
        parse_tiling_choice(text)
