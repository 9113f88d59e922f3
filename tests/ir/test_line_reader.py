"""Damaged text of any level is either still readable or one error that names the line."""

import random
from collections.abc import Callable

import pytest

from tests.graph_partition.test_parse import EXAMPLE as PARTITION
from tests.ir.test_parse_graph import EXAMPLE as GRAPH
from tests.ir.test_parse_kernel import EXAMPLE as KERNEL
from tests.ir.test_parse_plan import EXAMPLE as PLAN
from tofuse.errors import ParseError
from tofuse.graph_partition import show_partition
from tofuse.graph_partition.parse import parse_partition
from tofuse.ir.graph import show_graph
from tofuse.ir.line_reader import END, LineReader, read_lines
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ir.parse_plan import parse_plan

LEVELS = {
    "graph": (GRAPH, lambda text: show_graph(parse_graph(text))),
    "kernel": (KERNEL, lambda text: repr(parse_kernel(text))),
    "plan": (PLAN, lambda text: repr(parse_plan(text))),
    "partition": (PARTITION, lambda text: show_partition(parse_partition(text))),
}


@pytest.mark.parametrize("level", LEVELS)
def test_damaged_text_is_one_error_or_still_prints_and_parses(level: str):
    text, again = LEVELS[level]
    assert again(text) == text
    rng = random.Random(0)
    errors = 0
    for _ in range(1500):
        damaged = damage(rng, text)
        try:
            shown = again(damaged)
        except ParseError as error:
            errors += 1
            assert "\n" not in str(error)
            assert str(error).startswith("line ") or " is a header " in str(error)
        else:
            assert again(shown) == shown
    assert errors > 700


def damage(rng: random.Random, text: str) -> str:
    """Return `text` with a character or a word deleted, doubled or exchanged."""
    k = rng.randrange(len(text))
    match rng.randrange(4):
        case 0:
            return text[:k] + text[k + 1 :]
        case 1:
            return text[:k] + rng.choice("0aZ_ ,;:()[]{}<>='\"\\#@!*+-.\n") + text[k:]
        case 2:
            words = text.split(" ")
            del words[rng.randrange(len(words))]
            return " ".join(words)
        case _:
            words = text.split(" ")
            words[rng.randrange(len(words))] = rng.choice(words)
            return " ".join(words)


def line(text: str) -> LineReader:
    return LineReader(1, text)


def test_words_and_signs():
    reader = line("  size_1 = size(a, b,) : f32")
    assert not reader.skip("size") and reader.word() == "size_1"
    assert reader.expect("=").skip("size") and reader.expect("(").items(")", reader.word) == [
        "a", "b",
    ]  # fmt: skip
    assert reader.expect(":").peek() == "f32" == reader.dtype().value
    reader.expect(END)


def test_until_stops_at_the_last_sign():
    reader = line("call f(a) = (b)) in group")
    assert reader.expect("call").until(")") == "f(a) = (b)" and reader.skip("in")


@pytest.mark.parametrize(
    ("text", "read", "message"),
    [
        ("a x", lambda r: r.expect("b"), "line 1, column 1: 'b' expected at 'a x'"),
        ("  ,", LineReader.word, "line 1, column 3: a name expected at ','"),
        ("4", lambda r: r.expect(END), "line 1, column 1: unexpected text at '4'"),
        ("1.5", LineReader.number, "line 1, column 1: an integer expected at '1.5'"),
        ("s0", LineReader.real, "line 1, column 1: a number expected at 's0'"),
        ("", LineReader.dim, "line 1, column 1: a number or a size expected at the end"),
        ("'\\x'", LineReader.constant, "line 1, column 5: '\\x' is not a string"),
        ("None", LineReader.scalar, "line 1, column 1: None is not a number"),
    ],
)
def test_errors_name_line_and_column(text: str, read: Callable[[LineReader], object], message: str):
    with pytest.raises(ParseError) as caught:
        read(line(text))
    assert message in str(caught.value)


def test_blank_lines_and_comments_are_no_lines():
    assert [reader.row for reader in read_lines("# a\n\nb\n  # c\n  d")] == [3, 5]
