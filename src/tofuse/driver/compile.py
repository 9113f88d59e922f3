"""Compile a function or a module: check it, choose how it is captured, wrap the result."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

import torch
from torch.fx import GraphModule
from torch.nn.parallel import DistributedDataParallel

from tofuse.backends.aten.run_ops import eager_graph_callable
from tofuse.backends.llvm.load import host_target
from tofuse.cache.programs import ProgramCache, program_cache
from tofuse.capture.dynamo.backend import CompileGraph, aot_backend
from tofuse.capture.dynamo.code_objects import with_unique_code
from tofuse.capture.dynamo.hook_guards import GuardFilter, without_hook_guards
from tofuse.capture.trace.traced import Traced
from tofuse.config import Config
from tofuse.cost.machine_source import check_machine, store_of
from tofuse.driver.autotune_program import ProgramAutotuner
from tofuse.driver.compile_graph import compile_for_strides, compile_graph
from tofuse.driver.fallback import Fallback
from tofuse.driver.operator_claims import claims_of
from tofuse.driver.pipeline import capture_passes
from tofuse.driver.report_sink import ReportSink, discard_report
from tofuse.driver.wrap_module import share_state, wrap_distributed
from tofuse.errors import OptionError, UnsupportedError
from tofuse.executors import executors_of
from tofuse.report.model import GraphReport, Report
from tofuse.runtime.clock import Clock
from tofuse.runtime.execute import CompiledPlan
from tofuse.runtime.launch import thread_count
from tofuse.torch_internals.graph_break_prediction import predict_graph_breaks
from tofuse.torch_internals.torch_types import Backend

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=torch.nn.Module)
OLDEST, NEWEST = (2, 11), (2, 13)


def compile_target(target, config: Config, keep: ReportSink):  # type: ignore[no-untyped-def]
    check_torch()
    check_options(config)  # now, not at the first call
    check_callable(target)
    if isinstance(target, torch.jit.ScriptModule):
        Fallback(config, keep).refused("it is TorchScript, which has no Python to capture")
        return target
    if isinstance(target, DistributedDataParallel):
        return wrap_distributed(target, compile_target(target.module, config, keep))
    if config.capture == "trace":
        return _trace(target, config, keep)
    if not isinstance(target, torch.nn.Module):
        target = with_unique_code(target) if inspect.ismethod(target) else target
        return _jit(target, backend_for(config, keep), config)
    call = target._call_impl
    return share_state(
        target,
        without_hook_guards(
            lambda f: _jit(with_unique_code(call), backend_for(config, keep), config, f)
        ),
    )


def compile_reporting(target: Callable[P, R], config: Config) -> tuple[Callable[P, R], Report]:
    """The function compiled anew, and the report that fills as its graphs are compiled."""
    report = Report()
    whole = target if isinstance(target, torch.nn.Module) else with_unique_code(target)
    return compile_target(whole, config, report.graphs.append), report


def _trace(target, config: Config, keep: ReportSink):  # type: ignore[no-untyped-def]
    claims = claims_of(config)
    module = target if isinstance(target, torch.nn.Module) else None
    traced = Traced(
        target if module is None else module._call_impl,
        _aten_compiler(config, keep),
        capture_passes(claims),
        module,
        config.memory_budget,
        claims,
    )
    return (
        functools.update_wrapper(traced, target) if module is None else share_state(module, traced)
    )


def _jit(
    function: Callable[..., object],
    backend: Backend,
    config: Config,
    guards: GuardFilter | None = None,
) -> Callable[..., R]:
    torch._dynamo.config.skip_nnmodule_hook_guards = False  # hooks may come and go: `hooks.py`
    return torch.compile(  # type: ignore[call-overload]  # torch's overloads lack the limit
        function,
        backend=predict_graph_breaks(backend),
        dynamic=config.dynamic,
        fullgraph=config.fullgraph,
        options={"guard_filter_fn": guards} if guards else None,
        **_recompile_limit(),
    )


def _recompile_limit() -> dict[str, int]:
    """How to tell torch.compile that it shall not stop compiling after eight shapes."""
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        return {"recompile_limit": RECOMPILATIONS}
    dynamo = torch._dynamo.config
    dynamo.recompile_limit = max(dynamo.recompile_limit, RECOMPILATIONS)
    return {}


def backend_for(config: Config, keep: ReportSink) -> Backend:
    left = Fallback(config, keep)
    programs = program_cache(config, compile_for_strides) if keep is discard_report else None
    claims = claims_of(config)
    backend = aot_backend(
        _aten_compiler(config, keep, programs),
        capture_passes(claims),
        programs=programs,
        decompose_random="llvm" in config.executors,
        claims=claims,
        memory_budget=config.memory_budget,
        on_fallback=left.refused,
        on_failure=left.failed,
        specialize=config.specialize and keep is discard_report,
    )
    if config.tune != "measure":
        return backend

    def measured(gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        """The faster of what we compiled and PyTorch itself, decided at the first call."""
        key = (repr(host_target(thread_count())), torch.__version__, *config.executors)
        contest = ProgramAutotuner(backend(gm, example_inputs), gm, key, store_of(config))
        contest.lost = lambda choice: left.refused(f"compiled it is slower; {choice.why}")
        return contest

    return measured


def _aten_compiler(
    config: Config, keep: ReportSink, programs: ProgramCache | None = None
) -> CompileGraph:
    """A compiler of ATen graphs that leaves to PyTorch what it fails on."""
    left = Fallback(config, keep)
    fuel = config.fuel

    def burn(report: GraphReport) -> Clock | None:
        nonlocal fuel
        fuel = None if fuel is None else fuel - len(report.fusions)
        return keep(report)

    def compile_aten(gm: GraphModule, phase: str) -> CompiledPlan:
        try:
            return compile_graph(gm, phase, replace(config, fuel=fuel), burn, programs)
        except Exception as error:
            left.failed(error)
            return eager_graph_callable(gm)

    return compile_aten


def check_callable(target: object) -> None:
    if not callable(target):
        raise TypeError(f"tofuse compiles functions and modules, not {type(target).__name__}")


def check_options(config: Config) -> None:
    """Raise OptionError for executors, files and folders that are unknown or cannot be used."""
    executors_of(config)
    check_machine(config)
    try:
        if config.dump is not None:
            config.dump.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OptionError(f"dump={str(config.dump)!r} is no folder to write to: {e}") from e


def check_torch() -> None:
    version = tuple(int(p) for p in torch.__version__.split("+")[0].split(".")[:2])
    if not OLDEST <= version <= NEWEST:
        raise UnsupportedError(
            f"tofuse supports torch 2.11 to 2.13, and this is {torch.__version__}; "
            "install one of those"
        )


RECOMPILATIONS = 256  # of one function; Dynamo's own limit on all of them together
