"""`python -m benchmarks.gpu`: programs on an NVIDIA GPU, checked and timed against the peers.

Times are medians of `triton.testing.do_bench`, which clears the L2 cache between calls: of a replay
of the call's kernels as a CUDA graph, which shows the kernels, and of the call itself, which shows
the host where that is slower. The floor is what the least bytes take at the copy bandwidth.
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

BANDWIDTH = 4.3e12  # bytes a second of a copy on an H200; docs/measurements.md
Program = Callable[..., Tensor]
Make = Callable[[torch.dtype], "tuple[Tensor | int, ...]"]


@dataclass(frozen=True)
class Work:
    """A program, its inputs, and the tensors (of the first input's bytes) that it must move
    forward and backward; `drawn` results depend on random numbers."""

    name: str
    program: Program
    make: Make
    forward: float
    backward: float = 0.0
    drawn: bool = False


@dataclass(frozen=True)
class Time:
    """Microseconds of each peer for one part of a workload: kernels alone, and whole calls."""

    name: str
    dtype: str
    part: str
    floor: float
    kernels: dict[str, float]
    calls: dict[str, float]
    error: float


def leaf(*shape: int) -> Make:
    return lambda dtype: (torch.randn(shape, device="cuda").to(dtype).requires_grad_(),)


def norm(vectors: int) -> Make:
    def make(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
        shape = (64, 128, 1024)
        x, residual = (torch.randn(shape, device="cuda").to(dtype) for _ in range(2))
        rest = [torch.randn(1024, device="cuda").to(dtype) for _ in range(vectors)]
        return tuple(t.requires_grad_() for t in (x, rest[0], residual, *rest[1:]))

    return make


def classes(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    logits = torch.randn(8192, 32000, device="cuda").to(dtype).requires_grad_()
    return logits, torch.randint(32000, (8192,), device="cuda")


def puzzle(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    x = torch.rand(16 * 1024 * 256, device="cuda").to(dtype)
    weight, bias = torch.randn(1, 256, device="cuda").to(dtype), torch.randn(1, device="cuda")
    return x, weight, bias.to(dtype), 1024


def heads(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    return torch.randn(768, 128, 64, device="cuda").to(dtype), 12


def two(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    return tuple(torch.randn(4096, 4096, device="cuda").to(dtype) for _ in range(2))


def wide(dtype: torch.dtype) -> tuple[Tensor | int, ...]:
    return torch.randn(8192, 3072, device="cuda").to(dtype), 64


def transpose(x: Tensor) -> Tensor:
    return (x.t() * 2).contiguous()


def plain(make: Make) -> Make:
    return lambda dtype: tuple(t.detach() if isinstance(t, Tensor) else t for t in make(dtype))


WORKS = (
    Work("combined", programs.combined_weights, puzzle, 1),
    Work("split_stack", programs.split_stack_weights, puzzle, 1),
    Work("complex_activation", programs.complex_activation, two, 3),
    Work("norm_composite", programs.composite, norm(3), 3, 5, drawn=True),
    Work("norm_primitive", programs.primitive, norm(3), 3, 5, drawn=True),
    Work("norm_rms", programs.rms, norm(2), 3, 5, drawn=True),
    Work("norm_keep_all", programs.composite_keep_all, norm(3), 3, 5),
    Work("gelu_bookends", programs.gelu_bookends, wide, 2),
    Work("softmax", programs.softmax, leaf(8192, 3072), 2, 3),
    Work("cross_entropy", F.cross_entropy, classes, 1, 2),
    Work("heads_to_rows", programs.heads_to_rows, heads, 2),
    Work("transpose", transpose, plain(leaf(4096, 4096)), 2),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the names to run")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--no-inductor", action="store_true")
    chosen = parser.parse_args()
    torch.cuda.set_stream(torch.cuda.Stream())  # the default one cannot be captured
    torch._functorch.config.donated_buffer = False  # backward is timed by itself, many times
    print(f"{'microseconds of kernels':34}{'floor':>7}{'ours':>7} share  over peers    calls")
    times = []
    for work in WORKS:
        if any(part in work.name for part in chosen.only.split(",")):
            for dtype in (torch.float32, torch.bfloat16):
                times += run(work, dtype, inductor=not chosen.no_inductor)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps([asdict(t) for t in times], indent=1))


def run(work: Work, dtype: torch.dtype, *, inductor: bool) -> list[Time]:
    """Check and time every part of a workload."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    inputs = work.make(dtype)
    peers: dict[str, Program] = {"ours": tofuse.compile(work.program), "eager": work.program}
    if inductor:
        peers["inductor"] = torch.compile(work.program)
    error = 0.0 if work.drawn else check(work, peers["ours"], inputs)
    first = inputs[0]
    assert isinstance(first, Tensor)
    found = []
    for part, passes in (("forward", work.forward), ("backward", work.backward), ("both", 0.0)):
        if part != "forward" and not work.backward:
            continue
        floor = 1e6 * first.nbytes * (passes or work.forward + work.backward) / BANDWIDTH
        steps = {name: step_of(peer, inputs, part) for name, peer in peers.items()}
        kernels = {name: replayed(step) for name, step in steps.items()}
        calls = {name: median(step) for name, step in steps.items()}
        name = str(dtype).removeprefix("torch.")
        made = Time(work.name, name, part, floor, kernels, calls, error)
        found.append(made)
        show(made)
    return found


def show(t: Time) -> None:
    ours = t.kernels["ours"]
    ratios = " ".join(f"{n} {us / ours:5.2f}x" for n, us in t.kernels.items() if n != "ours")
    calls = " ".join(f"{us:6.1f}" for us in t.calls.values())
    head = f"{t.name} {t.dtype} {t.part}"
    print(
        f"{head:34}{t.floor:7.1f}{ours:7.1f}{t.floor / ours:6.0%}  {ratios}    {calls}"
        f"  error {t.error:.1e}",
        flush=True,
    )


def step_of(peer: Program, inputs: Sequence[Tensor | int], part: str) -> Callable[[], object]:
    """What is timed: the forward without gradients, the backward alone, or both."""
    wanted = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    if part == "forward":

        def forward() -> object:
            with torch.no_grad():
                return peer(*inputs)

        return forward
    result = peer(*inputs)
    given = torch.randn_like(result)
    if part == "both":
        return lambda: torch.autograd.grad(peer(*inputs), wanted, given)
    return lambda: torch.autograd.grad(result, wanted, given, retain_graph=True)


def replayed(step: Callable[[], object]) -> float:
    """Microseconds of the kernels of a step."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        kept = step()
    took = median(graph.replay)
    del kept
    return took


def median(step: Callable[[], object]) -> float:
    step()
    return 1e3 * float(triton.testing.do_bench(step, warmup=10, rep=50, return_mode="median"))


def check(work: Work, peer: Program, inputs: Sequence[Tensor | int]) -> float:
    """The worst error against float64, relative to the norm; no worse than eager's by far."""

    def results(program: Program, precise: bool) -> list[Tensor]:
        own = [
            x.detach().to(torch.float64 if precise and x.is_floating_point() else x.dtype)
            if isinstance(x, Tensor)
            else x
            for x in inputs
        ]
        leaves = [
            x.requires_grad_()
            for x, given in zip(own, inputs, strict=True)
            if isinstance(x, Tensor) and isinstance(given, Tensor) and given.requires_grad
        ]
        out = program(*own)
        if not leaves:
            return [out]
        generator = torch.Generator("cuda").manual_seed(1)
        given = torch.randn(out.shape, generator=generator, device="cuda").to(out.dtype)
        return [out, *torch.autograd.grad(out, leaves, given)]

    want = [t.detach() for t in results(work.program, True)]
    errors = {}
    for name, program in (("ours", peer), ("eager", work.program)):
        got = results(program, False)
        errors[name] = max(
            float((a.double() - b).norm() / b.norm()) for a, b in zip(got, want, strict=True)
        )
    assert errors["ours"] <= 2 * errors["eager"] + 1e-6, f"{work.name}: {errors}"
    return errors["ours"]


if __name__ == "__main__":
    main()
