"""The microkernels of a blocked contraction: for all of their columns, and for half of them."""

from __future__ import annotations

from tofuse.backends.cpu.llvm.emit import EmitOptions
from tofuse.backends.cpu.llvm.ir_text import FunctionBuilder
from tofuse.backends.cpu.llvm.matmul.masked_vectors import LANES
from tofuse.backends.cpu.llvm.matmul.microkernel import microkernel_function
from tofuse.backends.cpu.llvm.matmul.tile_microkernel import tile_microkernel_function
from tofuse.ir.blocked import BlockedContraction, BlockProduct
from tofuse.ir.schedule import Microkernel


def microkernel_texts(
    blocked: BlockedContraction, options: EmitOptions, declarations: dict[str, str]
) -> list[str]:
    """Return the functions of the microkernels; what they call is added to `declarations`."""
    schedule, texts = blocked.schedule, []
    for line_major in sorted({p.left.line_major for p in blocked.products}):
        for columns in _column_counts(blocked):
            name = _name(blocked, line_major, columns)
            if schedule.microkernel is Microkernel.BF16_TILES:
                text = tile_microkernel_function(name, schedule.depth, declarations)
            else:
                text = microkernel_function(
                    name,
                    schedule.micro_rows,
                    not line_major,
                    declarations,
                    fused=options.contract,
                    dtype=schedule.microkernel.dtype,
                    columns=columns,
                    is_whole=True,
                    panel_depth=schedule.depth,
                )
            texts.append(text)
    return texts


def microkernel_for(
    f: FunctionBuilder, blocked: BlockedContraction, p: BlockProduct, columns: str
) -> str:
    """Return the address of the microkernel for the remaining columns of a tile."""
    counts = _column_counts(blocked)
    whole, *half = (_name(blocked, p.left.line_major, c) for c in counts)
    if not half:
        return whole
    is_few = f.let(f"icmp sle i64 {columns}, {counts[-1]}")
    return f.let(f"select i1 {is_few}, ptr {half[0]}, ptr {whole}")


def _column_counts(blocked: BlockedContraction) -> tuple[int, ...]:
    """Return the columns of the microkernel, then of the one for columns that fill half of it."""
    schedule = blocked.schedule
    has_half = schedule.micro_columns == 2 * LANES
    if has_half and schedule.microkernel is not Microkernel.BF16_TILES:
        return schedule.micro_columns, LANES
    return (schedule.micro_columns,)


def _name(blocked: BlockedContraction, line_major: bool, columns: int) -> str:
    return f"@{blocked.kernel.name}.micro.{'lines' if line_major else 'steps'}.{columns}"
