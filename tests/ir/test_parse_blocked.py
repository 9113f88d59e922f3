"""Blocked contractions print and parse; their text has all that is emitted."""

from dataclasses import replace

import pytest

from tests.backends.cpu.llvm.matmul.test_blocked_kernel import GATED, GATHERED, GROUPED, LINEAR
from tofuse.backends.cpu.backend import CpuBackend
from tofuse.backends.cpu.llvm.emit import EmitOptions
from tofuse.backends.cpu.llvm.matmul.blocked_kernel import emit_blocked
from tofuse.backends.cpu.processors import PROCESSORS
from tofuse.cost.machine import default_machine
from tofuse.driver.passes_by_level import parse_program
from tofuse.driver.pipeline import cost_oracle
from tofuse.errors import ParseError
from tofuse.ir.parse_blocked import parse_blocked
from tofuse.ir.parse_kernel import parse_kernel

TARGET = PROCESSORS["avx512"].target(2)
TEXTS = {
    "linear": LINEAR.format(m=40, n=50, k=300, w="(300)*n + k", x="(300)*m + k", y="(50)*m + n"),
    "symbolic": LINEAR.format(
        m="s0", n=50, k=300, w="(300)*n + k", x="(300)*m + k", y="(50)*m + n"
    ).replace("k:300 {", "k:300 sizes s0=64 {"),
    "transposed": LINEAR.format(m=40, n=50, k=9, w="(50)*k + n", x="(40)*k + m", y="(50)*m + n"),
    "depth of three axes": GROUPED.format(m=40, n=50, g=40, j=16, gj=640, j2=32, k=1280),
    "two products of a batch": GATED.format(h=3, m=40, n=50, k=70, nk=3500, mk=2800, mn=2000),
    "gathered": GATHERED.format(m=40, n=50, k=30),
}


def blocks(text, target=TARGET):
    backend = cost_oracle(target, default_machine(2, target.lanes)).backend("cpu")
    assert isinstance(backend, CpuBackend)
    found = backend.blocks(parse_kernel(text))
    assert found is not None
    return found


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("field", ["avx512", "bf16_dot", "bf16_tiles"])
def test_round_trip(name, field):
    blocked = blocks(TEXTS[name], replace(TARGET, **{field: True}))
    parsed = parse_program(repr(blocked))
    assert repr(parsed) == repr(blocked)
    options = EmitOptions(avx512=True)
    assert emit_blocked(parse_blocked(repr(blocked)), options) == emit_blocked(blocked, options)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("microkernel f32", "microkernel f31", "there is no microkernel f31"),
        ("  tile stride 80\n", "", "'tile stride 80' expected"),
        ("block 300 of k", "block 300 of m", "m is not an axis of the depth"),
        ("left by lines", "left by line", "'steps' expected"),
        ("  product v5", "  products v5", "unexpected line"),
        ("kernel k.epilogue", "kernel k.epilogue2", "k.epilogue2"),
    ],
)
def test_errors_name_the_line(old, new, message):
    text = repr(blocks(TEXTS["linear"]))
    assert old in text
    with pytest.raises(ParseError, match=message):
        parse_blocked(text.replace(old, new))


def test_a_nest_is_missing():
    text = repr(blocks(TEXTS["linear"]))
    with pytest.raises(ParseError, match="two nests for each product"):
        parse_blocked(text[: text.index("kernel k.epilogue")])
