"""The public entry points: compile a function or module, explain what was compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar, overload

import torch
from torch.fx import GraphModule

from tofuse.capture.dynamo.code_objects import with_unique_code
from tofuse.capture.dynamo.graph_breaks import record_graph_breaks
from tofuse.config import Option, make_config
from tofuse.driver.compile import backend_for, check_callable, check_options, compile_target
from tofuse.driver.report_sink import discard_report
from tofuse.driver.time_calls import time_calls, timed_call
from tofuse.errors import OptionError
from tofuse.report.measured_times import add_measured_times
from tofuse.report.model import GraphReport, MachineLimits, Report
from tofuse.report.report_text import ReportText
from tofuse.runtime.clock import Clock, machine_limits
from tofuse.runtime.pool import POOL
from tofuse.torch_internals.graph_break_prediction import predict_graph_breaks

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=torch.nn.Module)
T = TypeVar("T", bound=Callable[..., object])


@overload
def compile(target: M, **options: Option) -> M: ...
@overload
def compile(target: Callable[P, R], **options: Option) -> Callable[P, R]: ...
@overload
def compile(target: None = None, **options: Option) -> Callable[[T], T]: ...
def compile(target=None, **options):  # type: ignore[no-untyped-def]  # the overloads have the types
    """Compile a function or a module, forward and backward.

    A module comes back as a module, an instance of its class, that shares everything with the
    original: parameters, buffers, submodules, hooks, mode; a function as a function. Options are
    the fields of `tofuse.config.Config`. Compilation happens at the first call, and again for
    new dtypes, devices or (unless `dynamic`) shapes. Without a target it is a decorator:
    `@tofuse.compile(dynamic=True)`.

    Raises TypeError for what is not callable, OptionError for an unknown option and
    UnsupportedError for a torch release outside 2.11 to 2.13.
    """
    config = make_config(options)
    if target is None:
        return lambda target: compile_target(target, config, discard_report)
    return compile_target(target, config, discard_report)


@overload
def memory_efficient_fusion(target: M, **options: Option) -> M: ...
@overload
def memory_efficient_fusion(target: Callable[P, R], **options: Option) -> Callable[P, R]: ...
def memory_efficient_fusion(target, **options):  # type: ignore[no-untyped-def]  # as compile
    """Compile a pure function or a module whole, forward and backward traced together.

    The spelling of functorch for `compile(target, capture="trace")`. What the backward can
    compute again is not saved. Every new shape, dtype or Python number compiles anew. Raises
    CaptureError, with the user's line, where the program's way depends on data.
    """
    if options.setdefault("capture", "trace") != "trace":
        raise OptionError("memory_efficient_fusion is capture='trace'; tofuse.compile has others")
    return compile_target(target, make_config(options), discard_report)


def explain(
    target: Callable[P, object], *, measure: bool = False, **options: Option
) -> Callable[P, ReportText]:
    """What `compile` makes of a function: `explain(fn)(*args)` gives a report.

    The function is called once with the arguments; the backward is compiled too where an output
    requires grad (gradients are computed but not accumulated). `report.regions`, `.kernels`,
    `.library_calls`, `.verdicts`, `.bytes_before`, `.bytes_after`, `.compile_ms` hold the
    decisions as data, `report.breaks` says where Dynamo broke the program and why; printing the
    report shows them, `report.save_html(path)` writes a page and `report.save_trace(path)` a trace.

    With `measure` it is called 15 times more, by PyTorch and compiled in turn, and the report has
    the microseconds of the calls (`report.calls`) and of each region (`.measured_us`). What the
    function changes, such as weights in an optimiser's step, is changed at each of these calls.
    """
    config = make_config(options)
    check_callable(target)
    if not isinstance(measure, bool):
        raise OptionError(f"measure is True or False, not {measure!r}")

    def run(*args: P.args, **kwargs: P.kwargs) -> ReportText:
        report = Report(name=getattr(target, "__name__", type(target).__name__))
        clocks: list[Clock] = []

        def keep(graph: GraphReport) -> Clock | None:
            report.graphs.append(graph)
            clocks.append(Clock())
            return clocks[-1] if measure else None

        whole = target if isinstance(target, torch.nn.Module) else with_unique_code(target)
        compiled = compile_target(whole, config, keep)
        with record_graph_breaks() as report.breaks:
            timed_call(compiled, args, kwargs)
        if measure:
            timed_call(target, args, kwargs)
            for clock in clocks:
                clock.reset()
            report.calls = time_calls(target, compiled, args, kwargs)
            report.limits = MachineLimits(*machine_limits())
            report.graphs = [
                add_measured_times(g, clock.median_us(), clock.last_run())
                for g, clock in zip(report.graphs, clocks, strict=True)
            ]
        return ReportText(report)

    return run


def memory_stats() -> dict[str, int]:
    """The memory pool in numbers: held_bytes, used_bytes, limit_bytes, blocks, hits, misses."""
    return POOL.stats()


def empty_cache() -> int:
    """Give the pool's unused memory back to the system; returns how many bytes that was."""
    return POOL.trim()


@predict_graph_breaks
def dynamo_backend(
    gm: GraphModule,
    example_inputs: Sequence[object],
    *,
    options: Mapping[str, Option] | None = None,
    mode: str | None = None,
) -> Callable[..., object]:
    """The backend behind `torch.compile(fn, backend="tofuse")`, its `options` among ours."""
    given = options or {}
    if mode is not None:
        raise OptionError(f"the backend 'tofuse' has options and no modes, such as {mode!r}")
    if foreign := [name for name in ("capture", "dynamic", "fullgraph") if name in given]:
        raise OptionError(f"torch.compile captures, not the backend 'tofuse': no {foreign[0]!r}")
    config = make_config(given)
    check_options(config)
    return backend_for(config, discard_report)(gm, example_inputs)
