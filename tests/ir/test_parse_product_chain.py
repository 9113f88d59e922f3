"""Product chains print and parse; their text has all that is emitted."""

from dataclasses import replace

import pytest

from tests.backends.cpu.llvm.matmul.test_chain_kernel import LATE, MLP, NEAREST, attention, chain
from tofuse.backends.cpu.llvm.emit import EmitOptions
from tofuse.backends.cpu.llvm.matmul.chain_kernel import emit_chain
from tofuse.backends.cpu.processors import PROCESSORS
from tofuse.driver.passes_by_level import parse_program
from tofuse.errors import ParseError
from tofuse.ir.parse_product_chain import parse_chain

TARGET = PROCESSORS["avx512"].target(2)
TEXTS = {
    "attention": attention(3, 40, 50, 16, 16),
    "half precision": attention(3, 40, 50, 17, 16, "bf16"),
    "numbers of rows": LATE.format(i=20, j=50, d=12, c=20),
    "three products": MLP.format(i=20, d=10, j=40, n=3, axes="c:33 d:10 j:40 n:3"),
    "one product": NEAREST.format(i=20, d=10, j=70),
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("field", ["avx512", "bf16_dot", "bf16_tiles"])
def test_round_trip(name, field):
    built = chain(TEXTS[name], replace(TARGET, **{field: True}))
    parsed = parse_program(repr(built))
    assert repr(parsed) == repr(built)
    options = EmitOptions(avx512=True)
    assert emit_chain(parse_chain(repr(built)), options) == emit_chain(built, options)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("microkernels f32", "microkernels f31", "there is no microkernel f31"),
        ("x32; workspace", "y32; workspace", "rows by columns"),
        ("  stage of 1 nests", "  stages of 1 nests", "unexpected line"),
        ("right by lines", "right by line;", "'steps' expected"),
        ("kernel k.stage2.0", "kernel k.stage3.0", "k.stage3.0"),
    ],
)
def test_errors_name_the_line(old, new, message):
    text = repr(chain(TEXTS["attention"], TARGET))
    assert old in text
    with pytest.raises(ParseError, match=message):
        parse_chain(text.replace(old, new))


def test_a_nest_is_missing():
    text = repr(chain(TEXTS["attention"], TARGET))
    with pytest.raises(ParseError, match="a nest expected for each"):
        parse_chain(text[: text.index("kernel k.stage2.0")])
