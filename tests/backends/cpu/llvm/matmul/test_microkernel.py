"""The microkernel's machine code at each processor level: its loop is products and loads alone."""

import re

import llvmlite.binding as llvm
import pytest

from tofuse.backends.cpu.llvm.machine_code import target_machine
from tofuse.backends.cpu.llvm.matmul.microkernel import microkernel_function
from tofuse.backends.cpu.llvm.matmul.pack import microkernel_size
from tofuse.backends.cpu.processors import PROCESSORS

SIZES = {"avx512": (14, 32), "avx2": (6, 16), "neon": (6, 16)}
PRODUCT = re.compile(r"vfmadd|fmla")
STACK = re.compile(r"\(%rsp|\[sp")


@pytest.mark.parametrize("depth_major", [True, False])
@pytest.mark.parametrize("level", PROCESSORS)
def test_loop_keeps_all_sums_in_registers(level, depth_major):
    processor = PROCESSORS[level]
    rows, columns = microkernel_size(processor.target(2))
    assert (rows, columns) == SIZES[level]
    declarations: dict[str, str] = {}
    text = microkernel_function(
        "@micro", rows, depth_major, declarations, columns=columns, is_whole=True
    )
    module = llvm.parse_assembly("\n".join([*declarations.values(), text]))
    lines = target_machine(processor).emit_assembly(module).splitlines()
    products = [k for k, line in enumerate(lines) if PRODUCT.search(line)]
    loop = lines[products[0] : products[-1] + 1]
    assert len(products) == rows * columns // processor.lanes
    assert not any(STACK.search(line) for line in loop)
    assert not any(line.endswith(":") for line in loop)  # one block
