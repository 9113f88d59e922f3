"""Machine code in this process: what it keeps, and what cannot be linked."""

import ctypes
from pathlib import Path

import pytest

from tofuse.backends.llvm.load import bind_vector_library, load
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


def resident() -> int:
    """Bytes of memory this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_a_kernel_keeps_little_but_its_machine_code():
    bind_vector_library(None)
    load(TEXT.format(callee="abort", number=0), ["kernel"])
    before = resident()
    for k in range(1, 41):
        load(TEXT.format(callee="abort", number=k), ["kernel"])
    assert resident() - before < 40 * 300_000


def test_functions_of_one_name_do_not_meet():
    first, second = (load(TEXT.format(callee="abort", number=n), ["kernel"])[0] for n in (7, 11))
    for kernel, wanted in ((first, 7), (second, 11)):
        words = (ctypes.c_longlong * 1)(0)
        assert kernel(words) == 0 and words[0] == wanted


def test_what_no_library_has_cannot_be_linked():
    text = TEXT.format(callee="no_such_function", number=0).replace(
        "%word =", "call void @no_such_function()\n  %word ="
    )
    with pytest.raises(CompileError, match="cannot link"):
        load(text, ["kernel"])
    load(TEXT.format(callee="abort", number=1000), ["kernel"])
