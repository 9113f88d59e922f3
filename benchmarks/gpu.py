"""`python -m benchmarks.gpu`: programs on an NVIDIA GPU, checked and timed against the peers.

Times are medians of `triton.testing.do_bench`, which clears the L2 cache between calls. A replay of
the call as a CUDA graph times the kernels alone; the call itself includes the host where that is
slower. The floor is the time of the minimum traffic at the copy bandwidth.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import triton.testing
from torch import Tensor

import tofuse
from benchmarks import programs

COPY_BANDWIDTH = 4.3e12  # bytes per second of a copy on an H200; see docs/measurements.md
TensorProgram = Callable[..., Tensor]
GpuInputMaker = Callable[[torch.dtype], "tuple[Tensor | int, ...]"]


@dataclass(frozen=True)
class GpuWorkload:
    """A program, its inputs, and the minimum traffic of its forward and backward.

    The traffic is in tensors of the first input's bytes. `is_random` results depend on random
    numbers.
    """

    name: str
    program: TensorProgram
    make: GpuInputMaker
    forward: float
    backward: float = 0.0
    is_random: bool = False


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


def leaf_input(*shape: int) -> GpuInputMaker:
    return lambda dtype: (torch.randn(shape, device="cuda").to(dtype).requires_grad_(),)


def norm_inputs(vectors: int) -> GpuInputMaker:
    def make(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
        shape = (64, 128, 1024)
        x, residual = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
        rest = [torch.randn(1024, device="cuda").to(dtype) for _ in range(vectors)]
        return tuple(t.requires_grad_() for t in (x, rest[0], residual, *rest[1:]))

    return make


def logits_and_labels(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    logits = torch.randn(8192, 32000, device="cuda").to(dtype).requires_grad_()
    return logits, torch.randint(32000, (8192,), device="cuda")


def stacked_inputs(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    x = torch.rand(16 * 1024 * 256, device="cuda").to(dtype)
    weight, bias = torch.randn(1, 256, device="cuda").to(dtype), torch.randn(1, device="cuda")
    return x, weight, bias.to(dtype), 1024


def heads_inputs(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    return torch.randn(768, 128, 64, device="cuda").to(dtype), 12


def two_matrices(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    return tuple(torch.randn(4096, 4096, device="cuda").to(dtype) for _ in range(2))


def wide_rows(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    return torch.randn(8192, 3072, device="cuda").to(dtype), 64


def transpose(x: Tensor) -> Tensor:
    return (x.t() * 2).contiguous()


def without_grad(make: GpuInputMaker) -> GpuInputMaker:
    return lambda dtype: tuple(t.detach() if isinstance(t, Tensor) else t for t in make(dtype))


WORKLOADS = (
    GpuWorkload("combined", programs.combined_weights, stacked_inputs, 1),
    GpuWorkload("split_stack", programs.split_stack_weights, stacked_inputs, 1),
    GpuWorkload("complex_activation", programs.complex_activation, two_matrices, 3),
    GpuWorkload("norm_composite", programs.composite, norm_inputs(3), 3, 5, is_random=True),
    GpuWorkload("norm_primitive", programs.primitive, norm_inputs(3), 3, 5, is_random=True),
    GpuWorkload("norm_rms", programs.rms, norm_inputs(2), 3, 5, is_random=True),
    GpuWorkload("norm_keep_all", programs.composite_keep_all, norm_inputs(3), 3, 5),
    GpuWorkload("gelu_bookends", programs.gelu_bookends, wide_rows, 2),
    GpuWorkload("softmax", programs.softmax, leaf_input(8192, 3072), 2, 3),
    GpuWorkload("cross_entropy", F.cross_entropy, logits_and_labels, 1, 2),
    GpuWorkload("heads_to_rows", programs.heads_to_rows, heads_inputs, 2),
    GpuWorkload("transpose", transpose, without_grad(leaf_input(4096, 4096)), 2),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="parts of the names of the workloads to run, separated by commas"
    )
    parser.add_argument("--json", type=Path, help="write the timings to this file")
    parser.add_argument("--no-inductor", action="store_true")
    options = parser.parse_args()
    torch.cuda.set_stream(torch.cuda.Stream())  # the default stream cannot be captured
    # the timed backward runs many times on the same saved tensors
    torch._functorch.config.donated_buffer = False
    print(f"{'kernel time in us':34}{'floor':>7}{'ours':>7} share  peers/ours    call times in us")
    times = []
    for workload in WORKLOADS:
        if any(part in workload.name for part in options.only.split(",")):
            for dtype in (torch.float32, torch.bfloat16):
                times += run(workload, dtype, inductor=not options.no_inductor)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(t) for t in times], indent=1))


def run(workload: GpuWorkload, dtype: torch.dtype, *, inductor: bool) -> list[Timing]:
    """Check and time every part of a workload."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = workload.make(dtype)
    peers: dict[str, TensorProgram] = {
        "ours": tofuse.compile(workload.program),
        "eager": workload.program,
    }
    if inductor:
        peers["inductor"] = torch.compile(workload.program)
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
        floor = 1e6 * traffic / COPY_BANDWIDTH
        steps = {name: make_step(peer, inputs, part) for name, peer in peers.items()}
        kernels = {name: time_graph_replay(step) for name, step in steps.items()}
        calls = {name: median_us(step) for name, step in steps.items()}
        name = str(dtype).removeprefix("torch.")
        timing = Timing(workload.name, name, part, floor, kernels, calls, error)
        timings.append(timing)
        print_timing(timing)
    return timings


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
