"""Who is measured: what each peer makes of a program, and the environment its process runs in."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from platformdirs import user_cache_dir

import tofuse
from benchmarks.seeds import Program
from tofuse.config import make_config
from tofuse.driver.compile import compile_reporting
from tofuse.report.model import Report

US = "tofuse"
KEPT = "TOFUSE_CACHE_DIR"  # our folder of machine code and measured machines
CALIBRATED = "TOFUSE_BENCH_CALIBRATED"  # the folder of measured machines, for our workers
Reporting = Callable[[Program], tuple[Program, Report]]

# glibc then keeps every block it is given back, instead of mapping fresh pages on each call.
KEEP_WARM = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "2000000000",
}


@dataclass(frozen=True)
class Peer:
    """A way to run a program, in a process with its own allocator settings.

    Caches start empty for each workload. A peer with `caches_of` compiles after that other peer and
    finds what it cached: its code is the same, so that only the other's compile time is cold.
    `modules` are imported before the first call is timed: importing is not compiling.
    """

    name: str
    title: str
    compile: Callable[[Program], Program]
    modules: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    caches_of: str | None = None
    reporting: Reporting | None = None  # compiles, and says what it predicts

    def environment(self, caches: Path) -> dict[str, str]:
        """The caller's environment with this peer's allocator, and with caches in that folder."""
        stock = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
        return {
            **stock,
            **self.settings,
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "XDG_CACHE_HOME": str(caches),
            KEPT: str(caches / "tofuse"),
            CALIBRATED: os.environ.get(KEPT) or user_cache_dir("tofuse"),
            "HF_HUB_OFFLINE": "1",
        }


def as_it_is(program: Program) -> Program:
    return program


def inductor(program: Program) -> Program:
    return torch.compile(program)


def ours(program: Program) -> Program:
    return tofuse.compile(program)


def reporting(program: Program) -> tuple[Program, Report]:
    """Compiled with the machine that was measured before, if one was; its caches are ours."""
    folder = os.environ.get(CALIBRATED)
    return compile_reporting(program, make_config({"cache_dir": folder}))


CAPTURE = ("torch._dynamo", "torch._functorch.aot_autograd")
INDUCTOR = (*CAPTURE, "torch._inductor.compile_fx")

PEERS = {
    peer.name: peer
    for peer in (
        Peer(US, "tofuse", ours, CAPTURE, reporting=reporting),
        Peer("eager", "eager", as_it_is),
        Peer("inductor", "Inductor as installed", inductor, INDUCTOR),
        Peer(
            "inductor-warm", "Inductor, allocator warm", inductor, INDUCTOR, KEEP_WARM, "inductor"
        ),
    )
}
