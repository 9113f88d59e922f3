"""The public functions: compile a function or module, and explain the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ParamSpec, TypeVar, overload

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule

from tofuse.backends.cpu.runtime.pool import POOL
from tofuse.cache.programs import is_cacheable
from tofuse.capture.dynamo.code_objects import with_unique_code
from tofuse.capture.dynamo.graph_breaks import record_graph_breaks
from tofuse.config import Option, make_config
from tofuse.driver.background import QUEUE
from tofuse.driver.compile import check_callable, compile_target
from tofuse.driver.compile_program import compile_program
from tofuse.driver.export import architecture_processors, export_program
from tofuse.driver.function_record import make_record
from tofuse.driver.process_group import default_group
from tofuse.driver.time_calls import time_calls, timed_call
from tofuse.driver.torch_options import own_options
from tofuse.driver.warm_start import WarmStart
from tofuse.errors import OptionError
from tofuse.report.call_times import MachineLimits
from tofuse.report.report_text import ReportText
from tofuse.runtime.timing import machine_limits

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=torch.nn.Module)
T = TypeVar("T", bound=Callable[..., object])
NO_TARGET = object()  # None is a target that is refused


@overload
def compile(target: M, **options: Option) -> M: ...
@overload
def compile(target: ExportedProgram, **options: Option) -> torch.nn.Module: ...
@overload
def compile(target: Callable[P, R], **options: Option) -> Callable[P, R]: ...
@overload
def compile(**options: Option) -> Callable[[T], T]: ...
def compile(target=NO_TARGET, **options):  # type: ignore[no-untyped-def]  # the overloads have the types
    """Compile a function or a module, forward and backward.

    For a function, return a function. For a module, return an instance of its class that shares
    all state with it: parameters, buffers, submodules, hooks, mode. The options are the fields of
    `tofuse.config.Config`. The first call compiles; calls with new dtypes, devices or (unless
    `dynamic`) shapes compile again. A program of `torch.export.export` counts as its
    module. Without a target, return a decorator: `@tofuse.compile(dynamic=True)`.

    With `background`, first calls run in eager while another process compiles; see `wait`.

    Raises TypeError if the target is no function, module or other callable instance, OptionError
    for an unknown option, and UnsupportedError for a torch release before 2.11.
    """
    config = make_config(options)
    if target is NO_TARGET:
        return lambda target: compile_target(target, make_record(config))
    return compile_target(target, make_record(config))


@overload
def memory_efficient_fusion(target: M, **options: Option) -> M: ...
@overload
def memory_efficient_fusion(target: Callable[P, R], **options: Option) -> Callable[P, R]: ...
def memory_efficient_fusion(target, **options):  # type: ignore[no-untyped-def]  # as compile
    """Compile a pure function or a module with forward and backward traced together.

    It is functorch's name for `compile(target, capture="trace")`. Values that the backward can
    recompute are not saved. A call with a new shape, dtype or Python number compiles again.

    Raises CaptureError, with the user's line, if control flow depends on data.
    """
    if options.setdefault("capture", "trace") != "trace":
        raise OptionError(
            "memory_efficient_fusion is capture='trace'; for another capture use tofuse.compile"
        )
    return compile_target(target, make_record(make_config(options)))


def export(
    target: Callable[..., object] | ExportedProgram,
    args: Sequence[object] = (),
    path: str | Path = "",
    *,
    kwargs: Mapping[str, object] | None = None,
    dynamic: bool | Mapping[str, object] | Sequence[object] | None = None,
    backward: bool = False,
    processors: Sequence[str] | None = None,
    **options: Option,
) -> None:
    """Write a function or module as one file, which `tofuse.load` runs without compiling.

    `args` and `kwargs` are those of one call, as for `torch.export.export`. `dynamic`: True if all
    sizes of tensors may vary that are at least 2 in the call, or torch.export's `dynamic_shapes`.
    A size that may be 1 gets a program of its own; no size that varies may be 0. With `backward`,
    gradients of parameters, and of arguments that require grad, can be taken. `processors` are
    names among "avx2", "avx512" and "neon"; None: all levels of this architecture.

    The file holds plans, machine code, weights and constants, in the format of safetensors.

    Raises UnsupportedError if the program cannot be a file, OSError if it cannot be written, and
    torch.export's errors if it cannot capture the program.
    """
    if not path:
        raise OptionError("export needs the path of the file: export(model, args, 'model.tofuse')")
    config = make_config({**options, "strict": True})
    if not is_cacheable(replace(config, strict=False)) or config.background:
        raise OptionError("export takes the options precision and memory_budget only")
    export_program(
        target,
        args,
        kwargs or {},
        Path(path),
        dynamic=dynamic,
        backward=backward,
        processors=architecture_processors() if processors is None else processors,
        config=config,
    )


def explain(
    target: Callable[P, object], *, measure: bool = False, **options: Option
) -> Callable[P, ReportText]:
    """Return a function that compiles `target` and returns a report: `explain(fn)(*args)`.

    It calls the target once. If an output requires grad, it compiles the backward, too: gradients
    are computed but not accumulated. The report holds the decisions as data: `.regions`,
    `.kernels`, `.library_calls`, `.verdicts`, `.bytes_before`, `.bytes_after`, `.compile_ms`, and
    the graph breaks in `.breaks`. Printing it shows them as text; `.save_html(path)` writes a page,
    `.save_trace(path)` a trace.

    With `measure`, the target is called 15 more times, eager and compiled in turn. The report then
    has the microseconds of the calls (`.calls`) and of each region (`.measured_us`). Side effects
    of the target, such as an optimizer's step, happen at each of these calls.
    """
    config = make_config(options)
    check_callable(target)
    if not isinstance(measure, bool):
        raise OptionError(f"measure must be True or False, not {measure!r}")

    def run(*args: P.args, **kwargs: P.kwargs) -> ReportText:
        name = getattr(target, "__name__", type(target).__name__)
        report = ReportText(name=name, ranks=default_group())
        unique = target if isinstance(target, torch.nn.Module) else with_unique_code(target)
        record = make_record(config, report, timed=measure)
        compiled = compile_target(unique, record)
        with record_graph_breaks() as report.breaks:
            timed_call(compiled, args, kwargs)
        if record.capture.programs and (reason := WarmStart(target, record).obstacle()):
            report.decisions.append(f"a later process captures this function again: {reason}")
        if measure:
            timed_call(target, args, kwargs)
            for clock in record.clocks:
                clock.reset()
            report.calls = time_calls(target, compiled, args, kwargs)
            report.limits = MachineLimits(*machine_limits())
            report.graphs = [
                g.with_times(clock.median_us(), clock.last_run())
                for g, clock in zip(report.graphs, record.clocks, strict=True)
            ]
        return report

    return run


def wait(timeout: float | None = None) -> bool:
    """Wait until no compilation runs in the background; return whether none runs.

    `timeout` is in seconds; None waits without limit. The next call of each function then runs its
    compiled code. Compilations that have not begun, such as those of calls with other sizes, begin
    at later calls.
    """
    return QUEUE.wait(timeout)


def background_stats() -> dict[str, int]:
    """Return statistics of the compilations with `background=True` in this process.

    The keys are running, succeeded and failed. Calls of a failed one are compiled in the
    foreground; the log `tofuse` has the reason at the level INFO.
    """
    return QUEUE.stats()


def memory_stats() -> dict[str, int]:
    """Return statistics of the memory pool.

    The keys are held_bytes, used_bytes, limit_bytes, blocks, hits and misses.
    """
    return POOL.stats()


def empty_cache() -> int:
    """Return the pool's unused memory to the system; return the number of bytes."""
    return POOL.trim()


def dynamo_backend(
    gm: GraphModule,
    example_inputs: Sequence[object],
    *,
    options: Mapping[str, Option] | None = None,
    mode: str | None = None,
) -> Callable[..., object]:
    """Compile a graph for `torch.compile(fn, backend="tofuse", mode=..., options=...)`.

    The options are those of `tofuse.compile`; Inductor's are ignored, with one warning.

    Raises OptionError for unknown options, and for arguments of torch.compile itself.
    """
    function = make_record(make_config(own_options(options or {}, mode)))
    return compile_program(function, gm, example_inputs)
