"""`python -m benchmarks.gpu`: programs on an NVIDIA GPU, checked and timed against the peers.

Times are medians of `triton.testing.do_bench`, which clears the L2 cache between calls. A replay of
the call as a CUDA graph times the kernels alone; the call itself includes the host where that is
slower. The floor is the time of a copy that moves as many bytes as the program must.
"""

import argparse
import functools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import torch
import triton.testing
from torch import Tensor

import tofuse
from benchmarks.gpu_workloads import MODULES, WORKLOADS, GpuModule, GpuWorkload, TensorProgram

NamedWorkload = TypeVar("NamedWorkload", GpuWorkload, GpuModule)


@dataclass(frozen=True)
class Timing:
    """Microseconds of each peer for one part of a workload: kernels alone, and whole calls."""

    name: str
    dtype: str
    part: str
    floor: float
    kernels: dict[str, float]
    calls: dict[str, float]
    error: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="parts of the names of the workloads to run, separated by commas"
    )
    parser.add_argument("--json", type=Path, help="write the timings to this file")
    parser.add_argument("--no-inductor", action="store_true")
    parser.add_argument(
        "--jobs", type=int, default=0, help="processes that first fill the caches of code"
    )
    options = parser.parse_args()
    if options.jobs:
        fill_caches(options.jobs, options.only.split(","))
    torch.cuda.set_stream(torch.cuda.Stream())  # the default stream cannot be captured
    # the timed backward runs many times on the same saved tensors
    torch._functorch.config.donated_buffer = False
    print(torch.cuda.get_device_name())
    for power in (24, 26, 28, 30):
        moved = 2 * (1 << power)
        print(f"a copy of 2**{power} bytes: {moved / copy_time(moved) / 1e6:.2f} TB/s")
    print(f"{'kernel time in us':34}{'copy':>7}{'ours':>7} share  peers/ours    call times in us")
    times = []
    for workload in select(WORKLOADS, options.only):
        for dtype in workload.dtypes:
            times += run(workload, dtype, inductor=not options.no_inductor)
    for module in select(MODULES, options.only):
        times.append(run_module(module, torch.bfloat16, inductor=not options.no_inductor))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(t) for t in times], indent=1))


def select(workloads: Sequence[NamedWorkload], only: str) -> list[NamedWorkload]:
    """Return the workloads whose names have one of the parts."""
    return [w for w in workloads if any(part in w.name for part in only.split(","))]


def fill_caches(jobs: int, parts: Sequence[str]) -> None:
    """Run every workload once, in processes beside each other, which leave code on disk."""
    every = [*(w.name for w in WORKLOADS), *(m.name for m in MODULES)]
    names = [name for name in every if any(part in name for part in parts)]

    def fill(name: str) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu", "--only", name]
        subprocess.run(command, capture_output=True, check=False)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(fill, names))


@functools.cache
def copy_time(traffic: int) -> float:
    """Return the microseconds of a copy that reads and writes so many bytes in all."""
    source = torch.empty(traffic // 2, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return time_graph_replay(lambda: target.copy_(source))


def run(workload: GpuWorkload, dtype: torch.dtype, *, inductor: bool) -> list[Timing]:
    """Check and time every part of a workload."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = workload.make(dtype)
    peers = make_peers(workload.program, inductor)
    error = 0.0 if workload.is_random else check(workload, peers["ours"], inputs)
    first = inputs[0]
    assert isinstance(first, Tensor)
    timings = []
    for part, tensors_moved in (
        ("forward", workload.forward),
        ("backward", workload.backward),
        ("both", 0.0),
    ):
        if part != "forward" and not workload.backward:
            continue
        traffic = first.nbytes * (tensors_moved or workload.forward + workload.backward)
        steps = {name: make_step(peer, inputs, part) for name, peer in peers.items()}
        kernels = {name: time_graph_replay(step) for name, step in steps.items()}
        calls = {name: median_us(step) for name, step in steps.items()}
        name = str(dtype).removeprefix("torch.")
        floor = copy_time(int(traffic))
        timings.append(Timing(workload.name, name, part, floor, kernels, calls, error))
        print_timing(timings[-1])
    return timings


def run_module(module: GpuModule, dtype: torch.dtype, *, inductor: bool) -> Timing:
    """Time a module's training step."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    program, inputs = module.make(dtype)
    assert isinstance(program, torch.nn.Module)
    leaves = [*program.parameters(), *(x for x in inputs if isinstance(x, Tensor))]
    leaves = [x for x in leaves if x.requires_grad]
    gradient = torch.randn_like(program(*inputs))

    def make(peer: TensorProgram) -> Callable[[], object]:
        return lambda: torch.autograd.grad(peer(*inputs), leaves, gradient)

    steps = {name: make(peer) for name, peer in make_peers(program, inductor).items()}
    kernels = {name: time_graph_replay(step) for name, step in steps.items()}
    calls = {name: median_us(step) for name, step in steps.items()}
    timing = Timing(module.name, str(dtype).removeprefix("torch."), "step", 0, kernels, calls, 0)
    print_timing(timing)
    return timing


def make_peers(program: TensorProgram, inductor: bool) -> dict[str, TensorProgram]:
    peers = {"ours": tofuse.compile(program), "eager": program}
    return peers | ({"inductor": torch.compile(program)} if inductor else {})


def print_timing(t: Timing) -> None:
    ours = t.kernels["ours"]
    ratios = " ".join(f"{n} {us / ours:5.2f}x" for n, us in t.kernels.items() if n != "ours")
    calls = " ".join(f"{us:6.1f}" for us in t.calls.values())
    head = f"{t.name} {t.dtype} {t.part}"
    print(
        f"{head:34}{t.floor:7.1f}{ours:7.1f}{t.floor / ours:6.0%}  {ratios}    {calls}"
        f"  error {t.error:.1e}",
        flush=True,
    )


def make_step(
    peer: TensorProgram, inputs: Sequence[Tensor | int], part: str
) -> Callable[[], object]:
    """Return the function to time: the forward without gradients, the backward, or both."""
    leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    if part == "forward":

        def forward() -> object:
            with torch.no_grad():
                return peer(*inputs)

        return forward
    result = peer(*inputs)
    gradient = torch.randn_like(result)
    if part == "both":
        return lambda: torch.autograd.grad(peer(*inputs), leaves, gradient)
    return lambda: torch.autograd.grad(result, leaves, gradient, retain_graph=True)


def time_graph_replay(step: Callable[[], object]) -> float:
    """Return the microseconds of the kernels of a step."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        results = step()
    microseconds = median_us(graph.replay)
    del results
    return microseconds


def median_us(step: Callable[[], object]) -> float:
    step()
    return 1e3 * float(triton.testing.do_bench(step, warmup=10, rep=50, return_mode="median"))


def check(workload: GpuWorkload, peer: TensorProgram, inputs: Sequence[Tensor | int]) -> float:
    """Return the largest error against float64, relative to the norm of each result.

    Asserts that it is at most about twice eager's.
    """

    def results(program: TensorProgram, precise: bool) -> list[Tensor]:
        copies = [
            x.detach().to(torch.float64 if precise and x.is_floating_point() else x.dtype)
            if isinstance(x, Tensor)
            else x
            for x in inputs
        ]
        leaves = [
            x.requires_grad_()
            for x, original in zip(copies, inputs, strict=True)
            if isinstance(x, Tensor) and isinstance(original, Tensor) and original.requires_grad
        ]
        out = program(*copies)
        if not leaves:
            return [out]
        generator = torch.Generator("cuda").manual_seed(1)
        gradient = torch.randn(out.shape, generator=generator, device="cuda").to(out.dtype)
        return [out, *torch.autograd.grad(out, leaves, gradient)]

    reference = [t.detach() for t in results(workload.program, True)]
    errors = {}
    for name, program in (("ours", peer), ("eager", workload.program)):
        actual = results(program, False)
        errors[name] = max(
            float((a.double() - b).norm() / b.norm())
            for a, b in zip(actual, reference, strict=True)
        )
    assert errors["ours"] <= 2 * errors["eager"] + 1e-6, f"{workload.name}: {errors}"
    return errors["ours"]


if __name__ == "__main__":
    main()
