"""Compile a function or a module with the capture that its options choose."""

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
from tofuse.capture.dynamo.hook_guards import GuardFilter, recompile_for_hooks
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
from tofuse.torch_internals.modules import CAN_WRAP_DDP, call_of
from tofuse.torch_internals.private_names import unsupported_capture
from tofuse.torch_internals.torch_types import Backend

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=torch.nn.Module)
OLDEST, NEWEST = (2, 11), (2, 13)


def compile_target(target, config: Config, sink: ReportSink):  # type: ignore[no-untyped-def]
    """Return the compiled function or module; check everything now, not at the first call."""
    check_torch()
    check_options(config)
    check_callable(target)
    reason = _eager_reason(target, config)
    if reason is not None:
        Fallback(config, sink).report(reason)
        return target
    if isinstance(target, DistributedDataParallel):
        return wrap_distributed(target, compile_target(target.module, config, sink))
    if config.capture == "trace":
        return _trace(target, config, sink)
    if not isinstance(target, torch.nn.Module):
        return recompile_for_hooks(
            lambda f: _jit(
                with_unique_code(target) if inspect.ismethod(target) else target,
                backend_for(config, sink),
                config,
                f,
            )
        )
    call = call_of(target)
    return share_state(
        target,
        recompile_for_hooks(
            lambda f: _jit(with_unique_code(call), backend_for(config, sink), config, f)
        ),
    )


def _eager_reason(target: object, config: Config) -> str | None:
    """Return why PyTorch must run every call of the target; None if it can be compiled."""
    if isinstance(target, torch.jit.ScriptModule):
        return "TorchScript has no Python code to capture"
    if isinstance(target, DistributedDataParallel) and not CAN_WRAP_DDP:
        return "this release of torch has another DistributedDataParallel"
    return unsupported_capture(config.capture)


def compile_reporting(target: Callable[P, R], config: Config) -> tuple[Callable[P, R], Report]:
    """Return the function, compiled again, and a report that collects its compiled graphs."""
    report = Report()
    unique = target if isinstance(target, torch.nn.Module) else with_unique_code(target)
    return compile_target(unique, config, report.graphs.append), report


def _trace(target, config: Config, sink: ReportSink):  # type: ignore[no-untyped-def]
    """Return the target with `capture="trace"`."""
    claims = claims_of(config)
    module = target if isinstance(target, torch.nn.Module) else None
    traced = Traced(
        target if module is None else call_of(module),
        _aten_compiler(config, sink),
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
    guards: GuardFilter,
) -> Callable[..., R]:
    """Return the function, captured by Dynamo and compiled by `backend`."""
    return torch.compile(  # type: ignore[call-overload]  # torch's overloads lack the limit
        function,
        backend=backend,
        dynamic=config.dynamic,
        fullgraph=config.fullgraph,
        options={"guard_filter_fn": guards},
        **_recompile_limit(),
    )


def _recompile_limit() -> dict[str, int]:
    """Return the argument of torch.compile that raises Dynamo's limit of eight recompilations.

    torch 2.11 has no such argument: calls that would be the ninth program of a function, or more,
    run in eager there.
    """
    if "recompile_limit" in inspect.signature(torch.compile).parameters:
        return {"recompile_limit": RECOMPILATIONS}
    return {}


def backend_for(config: Config, sink: ReportSink) -> Backend:
    """Return the backend for `torch.compile`."""
    fallback = Fallback(config, sink)
    if reason := unsupported_capture("dynamo"):
        fallback.report(reason)
        return lambda gm, example_inputs: gm.forward
    programs = program_cache(config, compile_for_strides) if sink is discard_report else None
    claims = claims_of(config)
    backend = aot_backend(
        _aten_compiler(config, sink, programs),
        capture_passes(claims),
        programs=programs,
        decompose_random="llvm" in config.executors,
        claims=claims,
        memory_budget=config.memory_budget,
        on_fallback=fallback.report,
        on_failure=fallback.warn,
        specialize=config.specialize and sink is discard_report,
    )
    if config.tune != "measure":
        return backend

    def autotuning_backend(
        gm: GraphModule, example_inputs: Sequence[object]
    ) -> Callable[..., object]:
        """Return the faster of the compiled and the eager program, timed at the first call."""
        key = (repr(host_target(thread_count())), torch.__version__, *config.executors)
        autotuner = ProgramAutotuner(backend(gm, example_inputs), gm, key, store_of(config))
        autotuner.on_fallback = lambda choice: fallback.report(
            f"the compiled program is slower; {choice.why}"
        )
        return autotuner

    return autotuning_backend


def _aten_compiler(
    config: Config, sink: ReportSink, programs: ProgramCache | None = None
) -> CompileGraph:
    """Return a compiler of ATen graphs; graphs whose compilation fails fall back to PyTorch."""
    fallback = Fallback(config, sink)
    fuel = config.fuel

    def spend_fuel(report: GraphReport) -> Clock | None:
        nonlocal fuel
        fuel = None if fuel is None else fuel - len(report.fusions)
        return sink(report)

    def compile_aten(gm: GraphModule, phase: str) -> CompiledPlan:
        try:
            return compile_graph(gm, phase, replace(config, fuel=fuel), spend_fuel, programs)
        except Exception as error:
            fallback.warn(error)
            return eager_graph_callable(gm)

    return compile_aten


def check_callable(target: object) -> None:
    """Raise TypeError for a target that is not callable."""
    if not callable(target):
        raise TypeError(f"tofuse compiles functions and modules, not {type(target).__name__}")


def check_options(config: Config) -> None:
    """Raise OptionError for unknown executors, and for files and folders that cannot be used."""
    executors_of(config)
    check_machine(config)
    try:
        if config.dump is not None:
            config.dump.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OptionError(f"dump={str(config.dump)!r} is not a writable folder: {e}") from e


def check_torch() -> None:
    """Raise UnsupportedError for a torch release outside `OLDEST` to `NEWEST`."""
    version = tuple(int(p) for p in torch.__version__.split("+")[0].split(".")[:2])
    if not OLDEST <= version <= NEWEST:
        raise UnsupportedError(
            f"tofuse supports torch 2.11 to 2.13, not {torch.__version__}; "
            "install a supported release"
        )


RECOMPILATIONS = 256  # per function; equals Dynamo's `accumulated_recompile_limit`
