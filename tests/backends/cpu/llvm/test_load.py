"""Machine code in this process: the memory it keeps, and link errors."""

import ctypes
from pathlib import Path

import pytest

from tofuse.backends.cpu.llvm.load import CODE
from tofuse.errors import CompileError

TEXT = """
declare void @{callee}()
define i32 @kernel(ptr %context) {{
  %word = load i64, ptr %context
  %more = add i64 %word, {number}
  store i64 %more, ptr %context
  ret i32 0
}}
"""


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_loaded_kernel_keeps_little_memory():
    CODE.bind_vector_library(None)
    CODE.load(TEXT.format(callee="abort", number=0), ["kernel"])
    before = resident_bytes()
    for k in range(1, 41):
        CODE.load(TEXT.format(callee="abort", number=k), ["kernel"])
    assert resident_bytes() - before < 40 * 300_000


def test_equal_function_names_do_not_collide():
    first, second = (
        CODE.load(TEXT.format(callee="abort", number=n), ["kernel"])[0] for n in (7, 11)
    )
    for kernel, wanted in ((first, 7), (second, 11)):
        words = (ctypes.c_longlong * 1)(0)
        assert kernel(words) == 0 and words[0] == wanted


def test_unresolved_symbol_raises_compile_error():
    text = TEXT.format(callee="no_such_function", number=0).replace(
        "%word =", "call void @no_such_function()\n  %word ="
    )
    with pytest.raises(CompileError, match="cannot link"):
        CODE.load(text, ["kernel"])
    CODE.load(TEXT.format(callee="abort", number=1000), ["kernel"])
