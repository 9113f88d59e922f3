"""Times the first training step of models: compiled by tofuse, and by AOTAutograd alone.

Times are of the processor: those of the clock vary by more than the difference on a busy machine.
"""

import copy
import gc
import logging
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import tofuse
from suites import models
from suites.harness import Result
from suites.zoo.example import Example, training_step
from tofuse.backends.cpu.llvm.load import CODE

ROUNDS = 2
Compile = Callable[[nn.Module, Path], nn.Module]


def list_cases() -> list[str]:
    return models.list_cases()


def run_case(case: str) -> Result:
    """Return the shortest first steps of both, in seconds, and the ratio of the two."""
    logging.disable(logging.CRITICAL)
    example = models.build(case)
    training_step(example.model, example.inputs)  # lazy imports and libraries
    _warm_up()
    times: dict[str, list[float]] = {name: [] for name in COMPILERS}
    for _ in range(ROUNDS):
        for name, compile_model in COMPILERS.items():
            times[name].append(_first_step(example, compile_model))
    ours, theirs = (min(times[name]) for name in ("tofuse", "aot_eager"))
    data: dict[str, str | int | float | list[str]] = {
        "tofuse": round(ours, 3),
        "aot_eager": round(theirs, 3),
        "ratio": round(ours / theirs, 3),
    }
    return Result(case, "ok", "", data)


def _warm_up() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    for compile_model in COMPILERS.values():
        _first_step(Example(model, {"input": torch.randn(2, 4)}), compile_model)


def _first_step(example: Example, compile_model: Compile) -> float:
    """Return the CPU seconds of a first step with nothing kept from before."""
    torch._dynamo.reset()
    CODE.forget()  # machine code in the process
    model = copy.deepcopy(example.model)
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        training_step(compile_model(model, Path(folder)), example.inputs)
        return time.process_time() - start


def _compile_ours(model: nn.Module, folder: Path) -> nn.Module:
    return tofuse.compile(model, cache_dir=folder)


def _compile_aot(model: nn.Module, folder: Path) -> nn.Module:
    compiled = torch.compile(model, backend="aot_eager")
    assert isinstance(compiled, nn.Module)
    return compiled


COMPILERS: dict[str, Compile] = {"aot_eager": _compile_aot, "tofuse": _compile_ours}
