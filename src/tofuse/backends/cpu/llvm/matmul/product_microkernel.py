"""The microkernels of a product: for all of their columns, and for half of them."""

from __future__ import annotations

from dataclasses import dataclass

from tofuse.backends.cpu.llvm.emit import EmitOptions
from tofuse.backends.cpu.llvm.ir_text import FunctionBuilder
from tofuse.backends.cpu.llvm.matmul.masked_vectors import LANES
from tofuse.backends.cpu.llvm.matmul.microkernel import microkernel_function
from tofuse.backends.cpu.llvm.matmul.tile_microkernel import tile_microkernel_function
from tofuse.ir.schedule import Microkernel


@dataclass(frozen=True)
class ProductMicrokernel:
    """Functions that add products of packed blocks to `rows` by `columns` sums.

    Their names begin with `prefix`. A left block has room for `panel_depth` steps; with
    `line_major`, its lines are contiguous.
    """

    prefix: str
    instruction: Microkernel
    rows: int
    columns: int
    line_major: bool
    panel_depth: int

    def texts(self, options: EmitOptions, declarations: dict[str, str]) -> list[str]:
        """Return the functions; what they call is added to `declarations`."""
        return [self._text(columns, options, declarations) for columns in self._column_counts]

    def function_for(self, f: FunctionBuilder, columns: str) -> str:
        """Return the address of the function for the remaining columns of a tile."""
        whole, *half = map(self._name, self._column_counts)
        if not half:
            return whole
        is_few = f.let(f"icmp sle i64 {columns}, {LANES}")
        return f.let(f"select i1 {is_few}, ptr {half[0]}, ptr {whole}")

    def _text(self, columns: int, options: EmitOptions, declarations: dict[str, str]) -> str:
        name = self._name(columns)
        if self.instruction is Microkernel.BF16_TILES:
            return tile_microkernel_function(name, self.panel_depth, declarations)
        return microkernel_function(
            name,
            self.rows,
            not self.line_major,
            declarations,
            fused=options.contract,
            dtype=self.instruction.dtype,
            columns=columns,
            is_whole=True,
            panel_depth=self.panel_depth,
        )

    @property
    def _column_counts(self) -> tuple[int, ...]:
        """The columns of all, then those of the function for columns that fill half of it."""
        has_half = self.columns == 2 * LANES and self.instruction is not Microkernel.BF16_TILES
        return (self.columns, LANES) if has_half else (self.columns,)

    def _name(self, columns: int) -> str:
        return f"{self.prefix}.{columns}"
