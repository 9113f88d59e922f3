"""The peers: how each compiles a program, and the environment of its process."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from platformdirs import user_cache_dir

import tofuse
from benchmarks.seeds import Program
from benchmarks.workloads.base import Workload
from tofuse.config import make_config
from tofuse.driver.compile import compile_reporting
from tofuse.report.model import Report

OURS = "tofuse"
CACHE_DIR_VARIABLE = "TOFUSE_CACHE_DIR"  # our folder of machine code and calibrations
CALIBRATION_VARIABLE = "TOFUSE_BENCH_CALIBRATED"  # the folder of calibrations, for our workers
CompileWithReport = Callable[[Program], tuple[Program, Report]]

# With these, glibc keeps freed blocks instead of mapping new pages on each call.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "2000000000",
}


@dataclass(frozen=True)
class Peer:
    """A way to compile a program, in a process with specific allocator settings.

    Caches are empty at the start of each workload. A peer with `uses_caches_of` compiles after that
    peer and finds what it cached: the code is the same, so only the other peer's compile time is
    cold. `modules` are imported before the first call, so that compile time excludes imports.
    """

    name: str
    title: str
    compile: Callable[[Program], Program]
    modules: tuple[str, ...] = ()
    allocator_settings: Mapping[str, str] = field(default_factory=dict)
    uses_caches_of: str | None = None
    compile_with_report: CompileWithReport | None = None  # also returns the predictions
    runs_packed: bool = False  # runs PyTorch's operator for the workload instead of the program
    products_only: bool = False

    def applies_to(self, workload: Workload) -> bool:
        if self.runs_packed:
            return workload.packed is not None
        return workload.group == "products" or not self.products_only

    def environment(self, caches: Path) -> dict[str, str]:
        """Return the environment of the peer's process: allocator settings and cache folders."""
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")
        }
        return {
            **inherited,
            **self.allocator_settings,
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "XDG_CACHE_HOME": str(caches),
            CACHE_DIR_VARIABLE: str(caches / "tofuse"),
            CALIBRATION_VARIABLE: os.environ.get(CACHE_DIR_VARIABLE) or user_cache_dir("tofuse"),
            "HF_HUB_OFFLINE": "1",
        }


def run_eager(program: Program) -> Program:
    return program


def compile_inductor(program: Program) -> Program:
    return torch.compile(program)


def compile_autotuned(program: Program) -> Program:
    return torch.compile(program, options={"max_autotune": True, "freezing": True})


def compile_tofuse(program: Program) -> Program:
    return tofuse.compile(program)


def compile_with_report(program: Program) -> tuple[Program, Report]:
    """Compile with the calibration of this machine, if there is one."""
    folder = os.environ.get(CALIBRATION_VARIABLE)
    return compile_reporting(program, make_config({"cache_dir": folder}))


CAPTURE_MODULES = ("torch._dynamo", "torch._functorch.aot_autograd")
INDUCTOR_MODULES = (*CAPTURE_MODULES, "torch._inductor.compile_fx")

PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            OURS, "tofuse", compile_tofuse, CAPTURE_MODULES, compile_with_report=compile_with_report
        ),
        Peer("eager", "eager", run_eager),
        Peer("inductor", "Inductor as installed", compile_inductor, INDUCTOR_MODULES),
        Peer(
            "inductor-warm",
            "Inductor, allocator warm",
            compile_inductor,
            INDUCTOR_MODULES,
            KEEP_FREED_MEMORY,
            "inductor",
        ),
        Peer(
            "inductor-max",
            "Inductor, max-autotune, freezing",
            compile_autotuned,
            INDUCTOR_MODULES,
            products_only=True,
        ),
        Peer("operator", "PyTorch's packed operator", run_eager, runs_packed=True),
    )
}
