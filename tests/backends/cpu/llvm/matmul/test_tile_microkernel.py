"""Products by tiles (AMX): machine code as text, and results with tiles kept in memory.

Few processors have tiles. Here functions of the same effect take the place of the instructions.
"""

import re
from dataclasses import replace

import llvmlite.binding as llvm
import pytest
import torch

from tests.backends.cpu.llvm.matmul.test_blocked_kernel import GATED, TARGET, blocked
from tests.support.kernels import run_interpreter, run_text
from tofuse.backends.cpu.llvm.emit import EmitOptions
from tofuse.backends.cpu.llvm.ir_text import FunctionBuilder
from tofuse.backends.cpu.llvm.matmul.blocked_kernel import emit_blocked
from tofuse.ir.schedule import Microkernel

pytestmark = pytest.mark.skipif(not TARGET.avx512, reason="processors with tiles have AVX-512")
WITH_TILES = replace(TARGET, bf16_tiles=True)


def product(h, m, n, k):
    text = GATED.format(h=h, m=m, n=n, k=k, nk=n * k, mk=m * k, mn=m * n)
    found = blocked(text, WITH_TILES)
    assert found.schedule.microkernel is Microkernel.BF16_TILES
    return found


def _tile(f, number, row, at):
    """Return the address of a byte of a row of a tile."""
    first = f.let(f"mul i64 {f.let(f'zext i8 {number} to i64')}, 1024")
    place = f.let(f"add i64 {f.let(f'mul i64 {row}, 64')}, {at}")
    return f.let(f"getelementptr i8, ptr @tiles, i64 {f.let(f'add i64 {first}, {place}')}")


def _moves(head, to_tile):
    f = FunctionBuilder()
    with f.loop("0", "16", "1") as row:
        place = f.let(f"mul i64 {row}, %stride")
        memory = f.let(f"getelementptr i8, ptr %p, i64 {place}")
        pair = (_tile(f, "%t", row, "0"), memory)
        to, source = pair if to_tile else reversed(pair)
        value = f.let(f"load <64 x i8>, ptr {source}, align 1")
        f.put(f"store <64 x i8> {value}, ptr {to}, align 1")
    return f.text(head)


def _bf16(f, pointer):
    raw = f.let(f"load i16, ptr {pointer}")
    bits = f.let(f"shl i32 {f.let(f'zext i16 {raw} to i32')}, 16")
    return f.let(f"bitcast i32 {bits} to float")


def _products(head):
    f = FunctionBuilder()
    with f.loop("0", "16", "1") as m, f.loop("0", "16", "1") as n, f.loop("0", "32", "1") as k:
        c = _tile(f, "%c", m, f.let(f"mul i64 {n}, 4"))
        a = _bf16(f, _tile(f, "%a", m, f.let(f"mul i64 {k}, 2")))
        half = f.let(f"add i64 {f.let(f'shl i64 {n}, 1')}, {f.let(f'and i64 {k}, 1')}")
        b = _bf16(f, _tile(f, "%b", f.let(f"lshr i64 {k}, 1"), f.let(f"mul i64 {half}, 2")))
        total = f.let(
            f"fadd float {f.let(f'load float, ptr {c}')}, {f.let(f'fmul float {a}, {b}')}"
        )
        f.put(f"store float {total}, ptr {c}")
    return f.text(head)


def _zeros(head):
    f = FunctionBuilder()
    with f.loop("0", "16", "1") as row:
        f.put(f"store <64 x i8> zeroinitializer, ptr {_tile(f, '%t', row, '0')}, align 1")
    return f.text(head)


def emulated(text):
    """Return the text with functions in place of the instructions of tiles."""
    text = re.sub(r"declare void @llvm.x86.t.*\n|declare void @llvm.x86.ldtile.*\n", "", text)
    text = re.sub(r"@llvm.x86.(t|ldtile)", r"@emulated.\1", text)
    definition = "define internal void @emulated"
    return "\n".join(
        [
            "@tiles = internal global [8192 x i8] zeroinitializer, align 64",
            f"{definition}.ldtilecfg(ptr %p) {{\n  ret void\n}}",
            f"{definition}.tilerelease() {{\n  ret void\n}}",
            _moves(f"{definition}.tileloadd64(i8 %t, ptr %p, i64 %stride)", True),
            _moves(f"{definition}.tilestored64(i8 %t, ptr %p, i64 %stride)", False),
            _zeros(f"{definition}.tilezero(i8 %t)"),
            _products(f"{definition}.tdpbf16ps(i8 %c, i8 %a, i8 %b)"),
            text,
        ]
    )


@pytest.mark.parametrize(("rows", "columns"), [(17, 16), (33, 70), (64, 64), (600, 20)])
@pytest.mark.parametrize("depth", [1, 31, 32, 545, 1030])
def test_results(rows, columns, depth):
    h, m, n, k = 2, rows, columns, depth
    b = product(h, m, n, k)
    a, w, x = (torch.randn(size).bfloat16() for size in (h * n * k, n * k, h * m * k))
    buffers = {"a": a, "b": w, "x": x / k**0.5, "y": torch.empty(h * m * n).bfloat16()}
    expected = run_interpreter(b.kernel, buffers, {}, precise=True)["y"].double()
    text = emulated(emit_blocked(b, EmitOptions(avx512=True)))
    found = run_text(text, b.kernel, b.block_bytes, buffers, {})["y"].double()
    margin = 1e-2 * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=margin)


def test_machine_code():
    """The sums stay in tiles: four loads and four products a step."""
    text = emit_blocked(product(2, 64, 64, 512), EmitOptions(avx512=True))
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("x86_64-unknown-linux-gnu").create_target_machine(
        cpu="sapphirerapids", opt=3
    )
    code = machine.emit_assembly(llvm.parse_assembly(text))
    counts = {
        name: len(re.findall(name, code)) for name in ("tdpbf16ps", "tileloadd", "tilestored")
    }
    assert counts == {"tdpbf16ps": 4, "tileloadd": 8, "tilestored": 4}
    assert code.count("ldtilecfg") == 1 and code.count("tilerelease") == 1
