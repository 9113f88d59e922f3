"""Checks of this machine, each with a finding, its meaning and advice."""

from __future__ import annotations

import importlib.util
import platform
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from tofuse.backends.cpu.llvm.load import host_target
from tofuse.backends.cpu.runtime.launch import find_openmp, find_vector_library, thread_count
from tofuse.config import Config, make_config
from tofuse.cost.host import available_cores, host
from tofuse.cost.machine_source import assumed_machine, measured_machine
from tofuse.disk_store import Store, store_of
from tofuse.driver.compile import compile_target
from tofuse.driver.function_record import make_record
from tofuse.driver.torch_release import NEWEST, OLDEST, release_text
from tofuse.errors import first_line
from tofuse.report.model import Report
from tofuse.report.number_format import plural, show_bytes
from tofuse.torch_internals.private_names import missing_notes, unsupported_capture

UNSUPPORTED = "tofuse does not support this release"
MAPS = Path("/proc/self/maps")  # the libraries of this process, on Linux
OPENMP = re.compile(r"/(lib(?:gomp|iomp5|omp)[^/\s]*)$", re.MULTILINE)
ALLOCATOR = re.compile(r"/(lib(?:jemalloc|tcmalloc|mimalloc)[^/\s]*)$", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """What a check found. `severity` is ok, hint, or error: nothing is compiled."""

    subject: str
    found: str
    meaning: str = ""
    todo: str = ""
    severity: str = "ok"


def check_torch_release() -> Finding:
    tested = f"{release_text(OLDEST)} to {release_text(NEWEST)}"
    found = f"torch {torch.__version__}, Python {platform.python_version()}"
    if (reason := unsupported_capture("dynamo")) is not None:
        return Finding("torch", found, reason, f"install torch {tested}", "error")
    major, minor = (int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    missing = "; ".join(missing_notes())
    if (major, minor) < OLDEST:
        return Finding("torch", found, UNSUPPORTED, f"install torch {tested}", "error")
    if not OLDEST <= (major, minor) <= NEWEST:
        meaning = f"tofuse is tested with torch {tested}" + (f"; {missing}" if missing else "")
        return Finding("torch", found, meaning, f"if something fails, try torch {tested}", "hint")
    return Finding("torch", found, missing)


def check_processor() -> Finding:
    target, processor = host_target(thread_count()), host()
    found = f"{processor.name}: vectors of {32 * target.lanes} bits"
    caches = f"L2 {show_bytes(processor.l2_bytes)}, usable L3 {show_bytes(processor.l3_bytes)}"
    if target.lanes < 8:
        return Finding("processor", found, f"{caches}; kernels are tuned for AVX2 and wider")
    own = "tofuse generates matrix products" if target.fast_gemm else ""
    return Finding("processor", found, "; ".join(filter(None, (caches, own))))


def check_threads() -> Finding:
    threads, available = thread_count(), available_cores()
    found = f"{plural(threads, 'thread')} of torch on {plural(available, 'core')}"
    if threads > available:
        meaning = "more threads than cores wait for one another"
        todo = f"set OMP_NUM_THREADS={available}, or torch.set_num_threads({available})"
        return Finding("threads", found, meaning, todo, "hint")
    return Finding("threads", found, "kernels use torch's threads")


def check_openmp() -> Finding:
    names = _loaded(OPENMP)
    found = ", ".join(names) or "the one that torch loaded"
    if find_openmp() is None:
        meaning = "torch's OpenMP runtime has no GOMP_parallel: kernels run on one thread"
        todo = "install a wheel of torch from PyPI"
        return Finding("OpenMP", found, meaning, todo, "hint")
    if len(names) > 1:
        meaning = f"{len(names)} runtimes each have their threads, which compete for the cores"
        return Finding("OpenMP", found, meaning, "load only one: see LD_PRELOAD", "hint")
    return Finding("OpenMP", found, "kernels and torch share its threads")


def check_vector_library() -> Finding:
    if find_vector_library() is None:
        meaning = "PyTorch runs the operators whose vector functions are missing"
        return Finding("functions", "no vector library of torch", meaning, severity="hint")
    return Finding("functions", "vector functions of torch's library")


def check_allocator() -> Finding:
    names = _loaded(ALLOCATOR)
    pool = show_bytes(make_config({}).pool_bytes or 0)
    meaning = f"results of kernels come from tofuse's pool, at most {pool} (option pool_bytes)"
    return Finding("memory", ", ".join(names) or "the system's allocator", meaning)


def check_cache() -> Finding:
    store = store_of(make_config({}))
    kinds = store.kinds()
    size = show_bytes(sum(kind.nbytes for kind in kinds))
    found = f"{plural(sum(kind.entries for kind in kinds), 'file')} ({size}) in {store.folder}"
    if (problem := _cannot_write(store)) is not None:
        todo = "make the folder writable, or set TOFUSE_CACHE_DIR to another"
        return Finding("cache", found, f"nothing is stored: {problem}", todo, "hint")
    return Finding("cache", found, "later processes load what this one compiles")


def check_calibration() -> Finding:
    target, config = host_target(thread_count()), make_config({})
    if measured_machine(target, config) != assumed_machine(target, config):
        return Finding("costs", "calibrated for this processor and number of threads")
    meaning = "predicted times in reports are rough; what is fused does not depend on it"
    todo = "for better predictions, call tofuse.calibrate() once: it takes a second"
    return Finding("costs", "not calibrated", meaning, todo)


def check_gpu() -> Finding:
    triton = _triton()
    if not torch.cuda.is_available():
        meaning = "programs run on the CPU"
        return Finding("GPU", "none that torch can use" + (f"; {triton}" * bool(triton)), meaning)
    names = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    found = ", ".join(names)
    if torch.version.hip:
        return Finding("GPU", found, "kernels are generated for NVIDIA GPUs only", severity="hint")
    if not triton:
        todo = "pip install triton"
        return Finding("GPU", found, "without Triton, PyTorch runs programs on it", todo, "hint")
    return Finding("GPU", f"{found}; {triton}", "kernels are generated with Triton")


def _triton() -> str:
    """Return Triton and its version; "" if there is none."""
    if importlib.util.find_spec("triton") is None:
        return ""
    try:
        return f"triton {version('triton')}"
    except PackageNotFoundError:  # it is part of another package
        return "triton"


def check_compiler() -> Finding:
    """Compile a small function and compare it with eager."""
    report = Report()
    x = torch.linspace(-2, 2, 1001)
    try:
        with tempfile.TemporaryDirectory() as folder:
            config = Config(cache_dir=Path(folder))
            compiled = compile_target(_probe, make_record(config, report))
            result = compiled(x)
    except Exception as error:  # whatever fails, the doctor reports it
        found = f"a small function fails: {type(error).__name__}: {first_line(error)}"
        return Finding("compiler", found, "", "report it, with this output", "error")
    if not torch.allclose(result, _probe(x), rtol=1e-5, atol=1e-6):
        todo = "report it, with this output; until then use PyTorch alone"
        return Finding("compiler", "a small function has a wrong result", "", todo, "error")
    kernels = sum(len(graph.kernels) for graph in report.graphs)
    if kernels != 1:
        notes = "; ".join(note for graph in report.graphs for note in graph.notes)
        return Finding("compiler", "a small function is not fused", notes, severity="error")
    ms = sum(graph.compile_ms for graph in report.graphs)
    return Finding("compiler", f"a small function is one kernel, compiled in {ms:.0f} ms")


def _probe(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * 2) + x.exp()


def _loaded(pattern: re.Pattern[str]) -> list[str]:
    """Return the names of the libraries of this process that match."""
    try:
        return sorted(set(pattern.findall(MAPS.read_text())))
    except OSError:
        return []


def _cannot_write(store: Store) -> str | None:
    try:
        store.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=store.folder):
            return None
    except OSError as error:
        return str(error)


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_torch_release,
    check_processor,
    check_threads,
    check_openmp,
    check_vector_library,
    check_allocator,
    check_cache,
    check_calibration,
    check_gpu,
    check_compiler,
)
