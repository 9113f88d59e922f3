"""Read local memory, memory accesses and barriers from the machine code of a kernel."""

import re
from dataclasses import dataclass

from tofuse.backends.cuda.triton.cubin import cubin_file, read_register_usage, run_tool
from tofuse.cost.thresholds import WIDEST_THREAD_ACCESS_BYTES

INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)([^;]*);")
LABEL = re.compile(r"^\s*(\.L_\w+):", re.MULTILINE)


@dataclass(frozen=True)
class MachineCode:
    """What the code of a kernel uses.

    `local` are the bytes of all loads and stores of local memory in the text: spills, and arrays.
    `wide` of `accesses` loads and stores of global memory have 16 bytes or more. `barriers` are
    those inside loops.
    """

    registers: int
    stack: int
    local: int
    accesses: int
    wide: int
    barriers: int


def read_machine_code(code: bytes) -> MachineCode:
    """Return what a cubin of one kernel uses. Raises CompileError."""
    usage = read_register_usage(code)
    with cubin_file(code) as name:
        text = run_tool("nvdisasm", "-c", name)
    return parse_disassembly(text, usage.registers, usage.stack)


def parse_disassembly(text: str, registers: int, stack: int) -> MachineCode:
    """Return what a disassembled kernel uses, given its registers and its stack."""
    labels = {m[1]: m.start() for m in LABEL.finditer(text)}
    instructions = [(m.start(), m[1], m[2]) for m in INSTRUCTION.finditer(text)]
    loops = []
    for place, name, operands in instructions:
        target = re.search(r"`\((\.L_\w+)\)", operands)
        if name.startswith("BRA") and target is not None:
            loops.append((labels.get(target[1], place), place))
    widths = [_width(n) for _, n, _ in instructions if n.startswith(("LDG", "STG"))]
    barriers = [place for place, n, _ in instructions if n.startswith("BAR.SYNC")]
    return MachineCode(
        registers,
        stack,
        sum(_width(n) for _, n, _ in instructions if n.startswith(("LDL", "STL"))),
        len(widths),
        sum(w >= WIDEST_THREAD_ACCESS_BYTES for w in widths),
        sum(any(first < b < last for first, last in loops) for b in barriers),
    )


def _width(name: str) -> int:
    """Return the bytes of a thread's access: `LDG.E.128` has 16, `LDG.E` has 4."""
    for part in name.split("."):
        if part in ("U8", "S8"):
            return 1
        if part in ("U16", "S16"):
            return 2
        if part in ("64", "128", "256"):
            return int(part) // 8
    return 4
