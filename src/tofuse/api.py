"""The public entry points: compile a function or module, explain what was compiled."""

from __future__ import annotations

import copy
import functools
import inspect
import statistics
import types
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import ParamSpec, TypeVar, overload

import torch
from torch.fx import GraphModule
from torch.nn.parallel import DistributedDataParallel

from tofuse.backends.aten.run_ops import graph_runner
from tofuse.backends.llvm.load import host_target
from tofuse.cache.programs import Programs, programs_of
from tofuse.capture.aot.double_backward import leaves
from tofuse.capture.dynamo.backend import Backend, CompileGraph, aot_backend
from tofuse.capture.dynamo.code_objects import own_frame
from tofuse.capture.dynamo.graph_breaks import heard_breaks
from tofuse.capture.dynamo.hook_guards import Filter, without_hook_guards
from tofuse.capture.trace.traced import Traced
from tofuse.config import Config, Option, make_config
from tofuse.cost.machine_source import check_machine, store_of
from tofuse.driver.autotune_program import Contest
from tofuse.driver.pipeline import (
    Keep,
    claims_of,
    compile_graph,
    compile_laid,
    unheard,
)
from tofuse.errors import OptionError, UnsupportedError
from tofuse.executors import executors_of
from tofuse.report.measured_times import measured
from tofuse.report.model import Calls, GraphReport, Limits, Report
from tofuse.report.report_text import ReportText
from tofuse.runtime.clock import Clock, machine_limits, now
from tofuse.runtime.execute import Run
from tofuse.runtime.launch import thread_count
from tofuse.runtime.pool import POOL
from tofuse.torch_internals.graph_break_prediction import foreseeing

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=torch.nn.Module)
T = TypeVar("T", bound=Callable[..., object])
ROUNDS = 7  # of measured calls: odd, so that the median is one of them
OLDEST, NEWEST = (2, 11), (2, 13)
RECOMPILATIONS = 256  # of one function; Dynamo's own limit on all of them together


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
        return lambda target: _compile(target, config, unheard)
    return _compile(target, config, unheard)


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
    return _compile(target, make_config(options), unheard)


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
    _check_callable(target)
    if not isinstance(measure, bool):
        raise OptionError(f"measure is True or False, not {measure!r}")

    def run(*args: P.args, **kwargs: P.kwargs) -> ReportText:
        report = Report(name=getattr(target, "__name__", type(target).__name__))
        clocks: list[Clock] = []

        def keep(graph: GraphReport) -> Clock | None:
            report.graphs.append(graph)
            clocks.append(Clock())
            return clocks[-1] if measure else None

        whole = target if isinstance(target, torch.nn.Module) else own_frame(target)
        compiled = _compile(whole, config, keep)
        with heard_breaks() as report.breaks:
            _call(compiled, args, kwargs)
        if measure:
            _call(target, args, kwargs)
            for clock in clocks:
                clock.reset()
            report.calls = _time_calls(target, compiled, args, kwargs)
            report.limits = Limits(*machine_limits())
            report.graphs = [
                measured(g, clock.microseconds(), clock.last())
                for g, clock in zip(report.graphs, clocks, strict=True)
            ]
        return ReportText(report)

    return run


def compile_reporting(target: Callable[P, R], config: Config) -> tuple[Callable[P, R], Report]:
    """The function compiled anew, and the report that fills as its graphs are compiled."""
    report = Report()
    whole = target if isinstance(target, torch.nn.Module) else own_frame(target)
    return _compile(whole, config, report.graphs.append), report


def memory_stats() -> dict[str, int]:
    """The memory pool in numbers: held_bytes, used_bytes, limit_bytes, blocks, hits, misses."""
    return POOL.stats()


def empty_cache() -> int:
    """Give the pool's unused memory back to the system; returns how many bytes that was."""
    return POOL.trim()


@foreseeing
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
    _check_options(config)
    return _backend(config, unheard)(gm, example_inputs)


def _compile(target, config: Config, keep: Keep):  # type: ignore[no-untyped-def]
    _check_torch()
    _check_options(config)  # now, not at the first call
    _check_callable(target)
    if isinstance(target, torch.jit.ScriptModule):
        _Left(config, keep).refused("it is TorchScript, which has no Python to capture")
        return target
    if isinstance(target, DistributedDataParallel):
        return _distributed(target, _compile(target.module, config, keep))
    if config.capture == "trace":
        return _trace(target, config, keep)
    if not isinstance(target, torch.nn.Module):
        target = own_frame(target) if inspect.ismethod(target) else target
        return _jit(target, _backend(config, keep), config)
    call = target._call_impl
    return _twin(
        target,
        without_hook_guards(lambda f: _jit(own_frame(call), _backend(config, keep), config, f)),
    )


def _check_callable(target: object) -> None:
    if not callable(target):
        raise TypeError(f"tofuse compiles functions and modules, not {type(target).__name__}")


def _check_options(config: Config) -> None:
    """Raise OptionError for executors, files and folders that are unknown or cannot be used."""
    executors_of(config)
    check_machine(config)
    try:
        if config.dump is not None:
            config.dump.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OptionError(f"dump={str(config.dump)!r} is no folder to write to: {e}") from e


def _trace(target, config: Config, keep: Keep):  # type: ignore[no-untyped-def]
    compile_aten, claims = _aten_compiler(config, keep), claims_of(config)
    if isinstance(target, torch.nn.Module):
        traced = Traced(target._call_impl, compile_aten, target, config.memory_budget, claims)
        return _twin(target, traced)
    traced = Traced(target, compile_aten, None, config.memory_budget, claims)
    return functools.update_wrapper(traced, target)


def _jit(
    function: Callable[..., object], backend: Backend, config: Config, guards: Filter | None = None
) -> Callable[..., R]:
    torch._dynamo.config.skip_nnmodule_hook_guards = False  # hooks may come and go: `hooks.py`
    return torch.compile(  # type: ignore[call-overload]  # torch's overloads lack the limit
        function,
        backend=foreseeing(backend),
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


def _twin(module: M, call: Callable[..., object]) -> M:
    """A module that is the given one in everything, but calls `call`."""
    return _subclassed(module, {"_compiled_call_impl": staticmethod(call)})


def _subclassed(module: M, members: Mapping[str, object]) -> M:
    """A module that is the given one in everything, but for these members of its class.

    The two share one `__dict__`: parameters, mode, hooks, whatever is set later. Copying or
    pickling the twin copies the original.
    """
    kind = type(module)

    def fill(body: MutableMapping[str, object]) -> None:
        body["__module__"], body["__qualname__"] = kind.__module__, kind.__qualname__
        body["__doc__"] = kind.__doc__
        body["__reduce_ex__"] = lambda self, protocol: (copy.copy, (module,))
        body.update(members)

    twin: M = object.__new__(types.new_class(kind.__name__, (kind,), {}, fill))
    twin.__dict__ = module.__dict__
    return twin


def _distributed(module: DistributedDataParallel, inner: Callable[..., object]) -> torch.nn.Module:
    """The module around a compiled one: what gets its gradients ready to be shared, at every call,
    stays Python."""

    def run(self: DistributedDataParallel, *inputs: object, **kwargs: object) -> object:
        with self._inside_ddp_forward():
            return inner(*inputs, **kwargs)

    return _subclassed(module, {"_run_ddp_forward": run})


def _backend(config: Config, keep: Keep) -> Backend:
    left = _Left(config, keep)
    programs = programs_of(config, compile_laid) if keep is unheard else None
    backend = aot_backend(
        _aten_compiler(config, keep, programs),
        programs=programs,
        own_random="llvm" in config.executors,
        claims=claims_of(config),
        memory_budget=config.memory_budget,
        refused=left.refused,
        failed=left.failed,
        specialize=config.specialize and keep is unheard,
    )
    if config.tune != "measure":
        return backend

    def measured(gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        """The faster of what we compiled and PyTorch itself, decided at the first call."""
        key = (repr(host_target(thread_count())), torch.__version__, *config.executors)
        contest = Contest(backend(gm, example_inputs), gm, key, store_of(config))
        contest.lost = lambda choice: left.refused(f"compiled it is slower; {choice.why}")
        return contest

    return measured


def _aten_compiler(config: Config, keep: Keep, programs: Programs | None = None) -> CompileGraph:
    """A compiler of ATen graphs that leaves to PyTorch what it fails on."""
    left = _Left(config, keep)
    fuel = config.fuel

    def burn(report: GraphReport) -> Clock | None:
        nonlocal fuel
        fuel = None if fuel is None else fuel - len(report.fusions)
        return keep(report)

    def compile_aten(gm: GraphModule, phase: str) -> Run:
        try:
            return compile_graph(gm, phase, replace(config, fuel=fuel), burn, programs)
        except Exception as error:
            left.failed(error)
            return graph_runner(gm)

    return compile_aten


@dataclass(frozen=True)
class _Left:
    """Says that a program is left to PyTorch, and why; under `strict` that is an error."""

    config: Config
    keep: Keep

    def refused(self, reason: str) -> None:
        note = f"PyTorch runs the whole program: {reason}"
        self.keep(GraphReport("inference", notes=(note,)))

    def failed(self, error: Exception) -> None:
        if self.config.strict:
            raise error
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        warnings.warn(f"tofuse leaves a program to PyTorch: {first}", stacklevel=2)
        self.refused(first)


# what autograd says where a graph is used up, and where an optimiser has changed what it needs
OVER = ("backward through the graph a second time", "modified by an inplace operation")


def _call(
    function: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[float, float]:
    """Forward, and backward where there is one; microseconds of each."""
    begin = now()
    outputs = [t for t in _tensors(function(*args, **kwargs)) if t.grad_fn is not None]
    forward = now() - begin
    wanted = leaves([t.grad_fn for t in outputs])
    if not wanted:
        return forward / 1e3, 0.0
    ones = [torch.ones_like(t) for t in outputs]
    begin = now()
    try:
        torch.autograd.grad(outputs, wanted, ones, allow_unused=True)
    except RuntimeError as error:  # of autograd's: the function has run the backward itself
        if not any(words in str(error) for words in OVER):
            raise
        return forward / 1e3, 0.0
    return forward / 1e3, (now() - begin) / 1e3


def _time_calls(
    eager: Callable[..., object],
    ours: Callable[..., object],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> Calls:
    """Both in turn, so that what disturbs the machine disturbs them alike."""
    rounds = [(*_call(eager, args, kwargs), *_call(ours, args, kwargs)) for _ in range(ROUNDS)]
    return Calls(ROUNDS, *(statistics.median(times) for times in zip(*rounds, strict=True)))


def _check_torch() -> None:
    version = tuple(int(p) for p in torch.__version__.split("+")[0].split(".")[:2])
    if not OLDEST <= version <= NEWEST:
        raise UnsupportedError(
            f"tofuse supports torch 2.11 to 2.13, and this is {torch.__version__}; "
            "install one of those"
        )


def _tensors(tree: object) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]
