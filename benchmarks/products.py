"""Matrix products, predicted and measured: `python -m benchmarks.products --threads 1`.

For each product, the time of PyTorch's library, its prediction, and the time of the compiled call.
The last lines have the median and the range of the ratio of measured to predicted, how many are
within a factor of two, and the products of which the prediction chose the slower kernel. In
bfloat16 (`--dtype bfloat16`), all products are the library's.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import tofuse
from tofuse.backends.cpu.cost.products import ProductSize, product_costs
from tofuse.cost.library import op_us
from tofuse.cost.machine import Machine
from tofuse.driver.context import host_target
from tofuse.ir.parse_graph import parse_graph

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512, 1024, 4096)
SHAPES = (
    *((64, 64), (256, 256), (512, 512), (768, 768), (1024, 1024), (2048, 2048)),
    *((768, 3072), (3072, 768), (2048, 4096), (4096, 1024), (1000, 1001), (512, 2048)),
)
MAX_FLOPS = 2 * 4096 * 1024 * 1024
SECONDS = 0.1
SLOWER = 1.03


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtype = getattr(torch, arguments.dtype)
    assert isinstance(dtype, torch.dtype)
    machine = tofuse.calibrate()
    ratios: list[float] = []
    losses: list[str] = []
    for depth, columns in SHAPES:
        weight = torch.randn(columns, depth, dtype=dtype)
        for rows in ROWS:
            if 2 * rows * columns * depth > MAX_FLOPS:
                continue
            predicted = predicted_us(ProductSize(rows, columns, depth), dtype, machine)
            library, compiled = measure(torch.randn(rows, depth, dtype=dtype), weight)
            ratios.append(library / predicted)
            name = f"{rows:5} x {depth} by {depth} x {columns}"
            print(
                f"{name}: library {library:.0f} us, predicted {predicted:.0f}, ours {compiled:.0f}"
            )
            if compiled > SLOWER * library:
                losses.append(f"{name}: {library / compiled:.2f}")
    print(f"{len(ratios)} products, measured / predicted: median {statistics.median(ratios):.2f}, ")
    close = sum(0.5 <= ratio <= 2 for ratio in ratios)
    print(f"from {min(ratios):.2f} to {max(ratios):.2f}; {close} within a factor of two")
    print(f"slower than the library by more than 3 %: {len(losses)}", *losses, sep="\n")


def predicted_us(size: ProductSize, dtype: torch.dtype, machine: Machine) -> float:
    """Return the microseconds that the cost model predicts for PyTorch's library."""
    if dtype == torch.float32:
        target = host_target(machine.threads)
        return machine.call_us + product_costs(size, machine, not target.fast_gemm).library
    x, w = (f"bf16[{n},{size.depth}]" for n in (size.rows, size.columns))
    graph = parse_graph(
        f"graph(x: {x}, w: {w}) {{\n"
        f"  t = permute(w, dims=(1, 0)) : bf16[{size.depth},{size.columns}]\n"
        "  y = opaque(x, t, target='aten.mm.default', args='$0, $1')"
        f" : bf16[{size.rows},{size.columns}]\n  return y\n}}"
    )
    return op_us(graph.ops[-1], machine)


def measure(x: Tensor, weight: Tensor) -> tuple[float, float]:
    """Return the microseconds of PyTorch's product and of the compiled one, in turn."""
    torch.compiler.reset()
    compiled = tofuse.compile(torch.nn.functional.linear, dynamic=False)
    calls: tuple[Callable[[], Tensor], ...] = (
        lambda: torch.nn.functional.linear(x, weight),
        lambda: compiled(x, weight),
    )
    times: tuple[list[float], list[float]] = ([], [])
    with torch.no_grad():
        for _ in range(60):  # after which a call that loses is handed back
            calls[1]()
        end = time.perf_counter() + SECONDS
        while len(times[0]) < 7 or time.perf_counter() < end:
            for call, found in zip(calls, times, strict=True):
                begin = time.perf_counter()
                call()
                found.append(time.perf_counter() - begin)
    library, ours = (1e6 * statistics.median(found) for found in times)
    return library, ours


if __name__ == "__main__":
    main()
