"""LLVM IR of what one iteration of a loop hands to the next."""

from __future__ import annotations

from tofuse.backends.cpu.llvm.function_emitter import FunctionEmitter
from tofuse.backends.cpu.llvm.ir_text import MEMORY_TYPES, REGISTER_TYPES, literal, vector_type
from tofuse.backends.cpu.llvm.scratch_accumulators import fill
from tofuse.cost.thresholds import MAX_CARRY_BYTES_IN_REGISTERS
from tofuse.ir.dims import SymDim
from tofuse.ir.graph import Scalar
from tofuse.ir.kernel import Next, Previous, Scan
from tofuse.ir.nest import Carry, Scratch
from tofuse.ops.table import scan_identity


class ActiveCarries:
    """What the loops around carry, by name: `active`, and the addresses of those in registers."""

    def __init__(self) -> None:
        self.active: dict[str, Carry] = {}
        self.registers: dict[str, str] = {}  # stack slots, which LLVM promotes

    def begin(self, emitter: FunctionEmitter, carry: Carry) -> None:
        """Set a carry to its start value.

        It is zero if the start value is a tensor, which `previous` selects in the first iteration.
        """
        s, f = carry.stmt, emitter.f
        self.active[s.name] = carry
        start: float | int = 0
        if isinstance(s, Scan):
            start = scan_identity(s.op, s.dtype)
        elif isinstance(s.start, Scalar) and isinstance(s.start.value, (bool, int, float)):
            start = s.start.value
        if carry.array is not None:
            fill_carry = _fill_stack_array if _fits_registers(carry.array) else fill
            fill_carry(emitter, carry.array, start)
            return
        ty = REGISTER_TYPES[s.dtype]
        slot = self.registers[s.name] = f.alloca(ty)
        f.put(f"store {ty} {literal(start, s.dtype, 1)}, ptr {slot}")

    def previous(self, emitter: FunctionEmitter, s: Previous) -> None:
        """Define the value of the step before."""
        ty = vector_type(REGISTER_TYPES[s.dtype], emitter.lanes)
        carried: list[str] = []
        for u in range(emitter.unroll):
            array = self.active[s.name].array
            if array is None:
                carried.append(emitter.f.let(f"load {ty}, ptr {self.registers[s.name]}"))
            else:
                slot = emitter.scratch_element_pointer(array, u)
                carried.append(emitter.load(slot, s.dtype, emitter.lanes, emitter.mask(u)))
        if not isinstance(s.start, Scalar) or isinstance(s.start.value, SymDim):
            is_first = emitter.f.let(f"icmp eq i64 {emitter.indices[s.axis]}, 0")
            starts = emitter.operands(s.start, s.dtype)
            carried = [
                emitter.f.let(f"select i1 {is_first}, {ty} {start}, {ty} {before}")
                for start, before in zip(starts, carried, strict=True)
            ]
        emitter.define(s.name, carried, s.dtype)

    def next(self, emitter: FunctionEmitter, s: Next) -> None:
        """Hand a value over to the next step."""
        values, array = emitter.operands(s.arg, s.dtype), self.active[s.previous].array
        for u, value in enumerate(values):
            if array is None:
                ty = vector_type(REGISTER_TYPES[s.dtype], emitter.lanes)
                emitter.f.put(f"store {ty} {value}, ptr {self.registers[s.previous]}")
            else:
                slot = emitter.scratch_element_pointer(array, u)
                emitter.store(slot, s.dtype, value, emitter.lanes, emitter.mask(u))
        emitter.define(s.name, list(values), s.dtype)


def _fill_stack_array(emitter: FunctionEmitter, array: Scratch, start: float | int) -> None:
    """Put a small array on the stack; LLVM keeps it in registers if each inner loop runs once."""
    lanes, ty = emitter.nest.schedule.vector, MEMORY_TYPES[array.dtype]
    assert isinstance(array.elements, int)
    count = -(-array.elements // lanes) * lanes
    pointer = emitter.stack_arrays[array.name] = emitter.f.alloca(f"[{count} x {ty}]")
    for k in range(0, count, lanes):
        slot = emitter.element_pointer(pointer, array.dtype, str(k))
        emitter.store(slot, array.dtype, literal(start, array.dtype, lanes), lanes, None)


def _fits_registers(array: Scratch) -> bool:
    elements = array.elements
    return (
        isinstance(elements, int)
        and elements * array.dtype.itemsize <= MAX_CARRY_BYTES_IN_REGISTERS
    )
