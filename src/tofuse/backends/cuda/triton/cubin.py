"""Read the registers and the stack of a kernel from its machine code."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tofuse.errors import CompileError

USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True)
class RegisterUsage:
    """The registers and the bytes of stack of a thread; a stack has spills, or arrays."""

    registers: int
    stack: int


def read_register_usage(code: bytes) -> RegisterUsage:
    """Return the registers and the stack of a cubin of one kernel. Raises CompileError."""
    with cubin_file(code) as name:
        usage = USAGE.search(run_tool("cuobjdump", "-res-usage", name))
    if usage is None:
        raise CompileError("cuobjdump shows no kernel in this machine code")
    return RegisterUsage(int(usage[2]), int(usage[3]))


@contextmanager
def cubin_file(code: bytes) -> Iterator[str]:
    """Yield the name of a file that holds a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        yield file.name


def run_tool(tool: str, *arguments: str) -> str:
    """Return what a tool prints that Triton brings. Raises CompileError."""
    import triton.backends.nvidia

    command = [str(Path(triton.backends.nvidia.__path__[0]) / "bin" / tool), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise CompileError(f"{tool}: {error}") from error
