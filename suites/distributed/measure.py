"""Run one row on one rank: compare with eager over some steps, then time steps in turn."""

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.allocations import allocations
from suites.distributed.rows import ROWS, Compiler, Training, World, whole
from tofuse.config import make_config
from tofuse.driver.compile import compile_target
from tofuse.driver.compile_program import compile_program
from tofuse.driver.function_record import make_record
from tofuse.report.model import Report

STEPS = 5  # compared
LEARNING_RATE = 0.1
ROUNDS, SECONDS = 15, 1.0  # steps of each contender: at least so many, and for so long
PEAKS = 5  # steps whose peak is measured: it depends on when collectives end
CONTENDERS = ("eager", "tofuse", "inductor")


@dataclass
class Contender:
    """A training of a row that steps its optimizer, too."""

    training: Training
    optimizer: torch.optim.Optimizer
    number: int = 0
    times: list[float] = field(default_factory=list)

    def step(self) -> Tensor:
        """Take the next step; return its loss, and leave the gradients."""
        self.optimizer.zero_grad()
        loss = self.training.step(self.number)
        self.optimizer.step()
        self.number += 1
        return loss

    def gradients(self) -> list[Tensor | None]:
        """Return whole gradients of all parameters."""
        return [None if p.grad is None else whole(p.grad) for p in self.training.parameters]


def compilers(report: Report) -> dict[str, Compiler]:
    """Return how each contender compiles; the report is that of tofuse's programs."""
    record = make_record(make_config({}), report)

    def in_place(backend: str | Callable[..., object], module: nn.Module) -> None:
        module.compile(backend=backend)

    return {
        "eager": Compiler(lambda module: module, lambda module: None),
        "tofuse": Compiler(
            lambda module: compile_target(module, record),
            partial(in_place, partial(compile_program, record)),
        ),
        "inductor": Compiler(torch.compile, partial(in_place, "inductor")),  # type: ignore[arg-type]
    }


def contend(row: str, world: World, compiler: Compiler) -> Contender:
    torch.compiler.reset()
    training = ROWS[row](world, compiler)
    return Contender(training, torch.optim.SGD(training.parameters, LEARNING_RATE))


def record_steps(contender: Contender) -> list[list[Tensor | None]]:
    """Return loss and gradients of each of the first steps."""
    return [[contender.step().clone(), *_copies(contender.gradients())] for _ in range(STEPS)]


def _copies(tensors: list[Tensor | None]) -> list[Tensor | None]:
    return [None if x is None else x.detach().clone() for x in tensors]


def largest_difference(ours: list[list[Tensor | None]], eager: list[list[Tensor | None]]) -> float:
    """Return the largest difference of a tensor, as a share of eager's largest number."""
    worst = 0.0
    for step, expected in zip(ours, eager, strict=True):
        for x, e in zip(step, expected, strict=True):
            if x is None or e is None:
                if x is not e:
                    return float("inf")
                continue
            scale = float(e.abs().max()) or 1.0
            difference = float((x.double() - e.double()).abs().max()) / scale
            worst = max(worst, difference if difference == difference else float("inf"))
    return worst


def check_row(row: str, rank: int, ranks: int) -> Report:
    """Train a block, compiled and in eager; raise AssertionError if losses or gradients differ."""
    _, report, difference, tolerance = compare_row(row, World(rank, ranks, blocks=1))
    assert difference <= tolerance, f"{row}: {difference:.1e} of the largest number"
    assert not fallbacks(report), report.notes
    return report


def fallbacks(report: Report) -> list[str]:
    """Return the notes on what PyTorch runs."""
    return [note for note in report.notes if note.startswith("PyTorch runs")]


def compare_row(row: str, world: World) -> tuple[dict[str, Contender], Report, float, float]:
    """Return eager's and our contender, our report, our largest difference, and what it may be."""
    report = Report()
    found = compilers(report)
    contenders = {name: contend(row, world, found[name]) for name in ("eager", "tofuse")}
    eager = record_steps(contenders["eager"])
    difference = largest_difference(record_steps(contenders["tofuse"]), eager)
    return contenders, report, difference, contenders["eager"].training.tolerance


def measure_row(row: str, rank: int, ranks: int) -> dict[str, str | int | float | list[str]]:
    """Return what the table says about a row."""
    world = World(rank, ranks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        contenders, report, difference, tolerance = compare_row(row, world)
        data: dict[str, str | int | float | list[str]] = {
            "difference": difference,
            "tolerance": tolerance,
            "kernels": len(report.kernels),
            "notes": fallbacks(report),
            "inductor_error": "",
        }
        try:  # which compiles all again
            inductor = contend(row, world, compilers(Report())["inductor"])
            record_steps(inductor)
            contenders["inductor"] = inductor
        except Exception as error:
            data["inductor_error"] = type(error).__name__
        time_steps(list(contenders.values()))
        for name, contender in contenders.items():
            data[f"{name}_ms"] = 1e3 * statistics.median(contender.times)
            peaks = [allocations(contender.step).peak for _ in range(PEAKS)]
            data[f"{name}_peak"] = statistics.median(peaks)
            data[f"{name}_sent"] = sent_bytes(contender)
    return data


def time_steps(contenders: list[Contender]) -> None:
    """Take turns; rank 0 decides when it is enough."""
    end = time.perf_counter() + SECONDS * len(contenders)
    going = torch.ones(())
    while going:
        for contender in contenders:
            dist.barrier()
            begin = time.perf_counter()
            contender.step()
            contender.times.append(time.perf_counter() - begin)
        enough = len(contenders[0].times) >= ROUNDS and time.perf_counter() > end
        going = torch.tensor(float(not enough))
        dist.broadcast(going, 0)


def sent_bytes(contender: Contender) -> int:
    """Return the bytes that all ranks together send in a step: those of the loopback device."""
    dist.barrier()
    before = _loopback_bytes()
    contender.step()
    dist.barrier()
    return _loopback_bytes() - before


def _loopback_bytes() -> int:
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())
