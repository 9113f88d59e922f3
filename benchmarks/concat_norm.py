"""Compare a concat into a layer norm with eager: `python -m benchmarks.concat_norm`.

Of 2, 6 and 16 operands; a compiler must not make it slower (pytorch PR 180930).
"""

from __future__ import annotations

import sys
import warnings

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import tofuse
from tofuse.backends.cpu.runtime.cpu_timing import interleaved_us

COUNTS = (2, 6, 16)
LIMIT = 1.1  # times eager's time


def main(rows: int = 512, width: int = 1024, seconds: float = 0.5) -> int:
    """Print the times; the exit status is 1 if one is over the limit."""
    table = Table(title="concat into a layer norm, microseconds")
    for heading in ("operands", "eager", "tofuse", "tofuse / eager"):
        table.add_column(heading, justify="right")
    ratios = []
    for count in COUNTS:
        eager_us, compiled_us = time_both(count, rows, width // count, seconds)
        ratios.append(compiled_us / eager_us)
        table.add_row(str(count), f"{eager_us:.0f}", f"{compiled_us:.0f}", f"{ratios[-1]:.2f}")
    Console().print(table)
    return 0 if max(ratios) < LIMIT else 1


def time_both(count: int, rows: int, columns: int, seconds: float) -> tuple[float, float]:
    """Return the microseconds of eager and of tofuse, measured in turns."""
    operands = [torch.randn(rows, columns) for _ in range(count)]

    def concat_norm(*operands: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(torch.cat(operands, -1), (count * columns,))

    torch.compiler.reset()
    compiled = tofuse.compile(concat_norm)
    torch.testing.assert_close(compiled(*operands), concat_norm(*operands), rtol=1e-4, atol=1e-4)
    steps = [lambda: concat_norm(*operands), lambda: compiled(*operands)]
    eager_us, compiled_us = interleaved_us(steps, seconds)
    return eager_us, compiled_us


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
