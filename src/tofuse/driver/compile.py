"""Compile a function or a module with the capture that its options choose."""

from __future__ import annotations

import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.nn.parallel import DistributedDataParallel

from tofuse.cache.programs import is_cacheable, uncacheable_options
from tofuse.capture.aot.aot_graphs import AOTGraphs, AtenGraph
from tofuse.capture.aot.boxed import BoxedFunction, CompiledFunction
from tofuse.capture.dynamo.code_objects import with_unique_code
from tofuse.capture.dynamo.hook_guards import GuardFilter, recompile_for_hooks
from tofuse.capture.trace.traced import Traced
from tofuse.config import Config
from tofuse.dispatch.dispatcher import Source, dispatching
from tofuse.driver.background import BackgroundCompiler
from tofuse.driver.compile_graph import compile_graph, recomputable_finder
from tofuse.driver.compile_program import compile_program
from tofuse.driver.fork import register_fork_handlers
from tofuse.driver.function_record import FunctionRecord, make_record
from tofuse.driver.hand_back import EagerSource
from tofuse.driver.pipeline import run_traced_passes
from tofuse.driver.torch_release import check_torch
from tofuse.driver.warm_start import WarmStart
from tofuse.driver.wrap_module import Recompilation, share_state, wrap_distributed
from tofuse.errors import OptionError, TofuseWarning, UnsupportedError
from tofuse.report.model import Report
from tofuse.runtime.autograd_program import make_program
from tofuse.torch_internals.dynamo import GuardFilterEntry, uncompiled, update_compiled_wrapper
from tofuse.torch_internals.modules import CAN_WRAP_DDP, call_of
from tofuse.torch_internals.private_names import unsupported_capture

P = ParamSpec("P")
R = TypeVar("R")


def compile_target(target, function: FunctionRecord):  # type: ignore[no-untyped-def]
    """Return the compiled function or module.

    Raises errors for a target or options that cannot be compiled. Returns the target itself if
    PyTorch must run every call, such as those of TorchScript and of coroutines.
    """
    context = function.context
    check_torch()
    if isinstance(target, ExportedProgram):
        target = target.module()
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(compile_target(target.__func__, function))
    check_callable(target)
    target = uncompiled(target)
    if context.config.background and (names := uncacheable_options(context.config)):
        raise OptionError(
            f"background=True does not go with {', '.join(names)} (also of the environment): "
            "programs of another process come through the cache on disk"
        )
    reason = _eager_reason(target, context.config)
    if reason is not None:
        function.add_fallback(reason)
        return target
    if isinstance(target, DistributedDataParallel):
        inner = compile_target(target.module, function)
        return wrap_distributed(target, inner, Recompilation(recompile, context.config))
    if context.config.capture == "trace":
        return _trace(target, function)
    is_module = isinstance(target, torch.nn.Module)
    call = call_of(target) if is_module else target
    kept = is_cacheable(context.config)
    observe = function.capture.set_guards if kept else function.capture.earlier.add_constants
    capture = functools.partial(_capture, call, is_module or inspect.ismethod(target), observe)
    compiled = capture(function)
    codes = WarmStart(target, function) if kept and not context.explains else None
    if codes is not None and context.config.background:
        other = replace(function, context=replace(context, capture_only=True))
        capture_only = functools.partial(capture, other)
        codes.background = BackgroundCompiler(  # it captures in another process
            lambda args, kwargs: codes.capture(capture_only(), args, kwargs), call, codes.reload
        )
    decides = context.decides and not context.explains
    if decides and is_module:
        function.hand_back.mode = _mode_of(target)
    compiled = with_entries(compiled, function, codes, call if decides else None)
    if is_module:
        return share_state(target, compiled, Recompilation(recompile, context.config))
    return compiled


def _mode_of(module: torch.nn.Module) -> Callable[[], object]:
    """Return a function that returns the grad mode, and whether the module trains."""
    weak = weakref.ref(module)  # programs hold the function, and Dynamo holds programs

    def mode() -> object:
        live = weak()
        return torch.is_grad_enabled(), live is not None and live.training

    return mode


def with_entries(
    compiled: Callable[..., R],
    function: FunctionRecord,
    codes: WarmStart | None,
    original: Callable[..., R] | None,
) -> Callable[..., R]:
    """Return a function that asks for entries before it runs what Dynamo compiles.

    Calls are handed back to the original, if it is given.
    """
    capture, hand_back = function.capture, function.hand_back
    eager = None if original is None else EagerSource(hand_back, original)
    sources: list[Source] = [source for source in (eager, codes) if source is not None]
    if not sources:
        return compiled

    def observe(run: Callable[..., R], args: Sequence[object], kwargs: Mapping[str, object]) -> R:
        begun = None if eager is None else hand_back.begin()
        try:
            result = run(*args, **kwargs)
        except BaseException:
            capture.clear()
            raise
        if codes is not None and capture.guards is not None:
            codes.keep()
        if begun is not None:
            hand_back.end(begun, args, kwargs)
        return result

    return update_compiled_wrapper(dispatching(sources, compiled, observe), compiled)


def _capture(
    call: Callable[..., R],
    has_shared_code: bool,
    observe: Callable[[Sequence[GuardFilterEntry]], None],
    function: FunctionRecord,
) -> Callable[..., R]:
    """Return the function that Dynamo captures at its calls; `observe` receives the guards."""
    context = function.context

    def compile_with(guards: GuardFilter | None) -> Callable[..., R]:
        unique = with_unique_code(call) if has_shared_code else call
        function.capture.set_function(unique)
        return _jit(unique, function, guards)

    fails = context.config.fullgraph or context.config.strict or context.capture_only
    return recompile_for_hooks(compile_with, observe, None if fails else _untraced(call, function))


def _untraced(call: Callable[..., R], function: FunctionRecord) -> Callable[..., R]:
    """Return a function that runs `call` in eager because Dynamo cannot trace it for a reason."""

    def run(reason: str, *args: object, **kwargs: object) -> R:
        result = call(*args, **kwargs)
        function.hand_back.calls.in_eager += 1
        message = f"Dynamo cannot trace it: {reason}"
        warnings.warn(f"tofuse runs a call in eager: {message}", TofuseWarning, stacklevel=6)
        function.add_fallback(message)
        return result

    return run


def recompile(module: torch.nn.Module, config: Config) -> torch.nn.Module:
    """Compile a copy of a module with the options of the original."""
    compiled: torch.nn.Module = compile_target(module, make_record(config))
    return compiled


def _eager_reason(target: object, config: Config) -> str | None:
    """Return why PyTorch must run every call of the target; None if it can be compiled."""
    if isinstance(target, torch.jit.ScriptModule):
        return "TorchScript has no Python code to capture"
    if _is_coroutine_function(target):
        return "it is a coroutine function: compile the functions that it calls"
    if isinstance(target, DistributedDataParallel) and not CAN_WRAP_DDP:
        return "this release of torch has another DistributedDataParallel"
    return unsupported_capture(config.capture)


def _is_coroutine_function(target: object) -> bool:
    """Return whether a call of a function, a module or an object returns a coroutine."""
    call = target.forward if isinstance(target, torch.nn.Module) else type(target).__call__
    return any(map(inspect.iscoroutinefunction, (target, call)))


def compile_reporting(target: Callable[P, R], config: Config) -> tuple[Callable[P, R], Report]:
    """Return the function, compiled again, and a report that collects its compiled graphs."""
    report = Report()
    unique = target if isinstance(target, torch.nn.Module) else with_unique_code(target)
    return compile_target(unique, make_record(config, report)), report


def _trace(target, function: FunctionRecord):  # type: ignore[no-untyped-def]
    """Return the target with `capture="trace"`."""
    context = function.context
    module = target if isinstance(target, torch.nn.Module) else None

    def new_graphs() -> AOTGraphs:
        passes = functools.partial(run_traced_passes, claims=context.claims)

        def compile_for(graph: AtenGraph, args: Sequence[object]) -> BoxedFunction:
            compiled = compile_graph(graph, context, function.fuel, args=args)
            return function.add_graph(compiled).run

        return AOTGraphs(
            passes,
            compile_for,
            make_program,
            context.config.memory_budget,
            find_recomputable=recomputable_finder(context),
        )

    call = target if module is None else call_of(module)
    traced = Traced(call, new_graphs, module, context.claims)
    if module is None:
        return functools.update_wrapper(traced, target)
    return share_state(module, traced, Recompilation(recompile, context.config))


def _jit(
    call: Callable[..., object], function: FunctionRecord, guards: GuardFilter | None
) -> Callable[..., R]:
    """Return the function, captured by Dynamo and compiled by `compile_program`.

    Dynamo keeps each backend until it is reset. So the backend holds the record weakly; the caller
    must hold it as long as the function.
    """
    weak, context = weakref.ref(function), function.context

    def tofuse(gm: GraphModule, inputs: Sequence[object]) -> CompiledFunction:  # named in errors
        live = weak()
        assert live is not None
        return compile_program(live, gm, inputs)

    return torch.compile(  # type: ignore[call-overload]  # torch's overloads lack the limit
        call,
        backend=tofuse,
        dynamic=context.config.dynamic,
        fullgraph=context.config.fullgraph or context.capture_only,
        options={"guard_filter_fn": guards} if guards else None,
        **_torch_compile_arguments(context.config),
    )


def _torch_compile_arguments(config: Config) -> dict[str, str | int]:
    """Return the arguments of torch.compile that not every release has.

    By default they raise Dynamo's limit of eight recompilations. torch 2.11 has none of them: calls
    that would be the ninth program of a function, or more, run in eager there.

    Raises UnsupportedError for an option that the user gave and torch lacks.
    """
    known = inspect.signature(torch.compile).parameters
    given: dict[str, str | int | None] = {
        "name": config.name,
        "recompile_limit": config.recompile_limit,
        "isolate_recompiles": config.isolate_recompiles or None,
    }
    for word, value in given.items():
        if value is not None and word not in known:
            raise UnsupportedError(
                f"torch.compile of torch {torch.__version__} has no {word!r}; leave it out"
            )
    words = {word: value for word, value in given.items() if value is not None}
    if "recompile_limit" in known:
        words.setdefault("recompile_limit", RECOMPILATIONS)
    return words


def check_callable(target: object) -> None:
    """Raise TypeError for a target that is no function, module or other callable instance."""
    if isinstance(target, type):
        name = target.__name__
        raise TypeError(
            f"tofuse compiles functions and modules, and {name} is a class: "
            f"compile an instance, as in tofuse.compile({name}(...)), or a method"
        )
    if not callable(target):
        kind = f"a {type(target).__name__}" if target is not None else "None"
        raise TypeError(
            f"tofuse compiles functions and modules, and this is {kind}: pass the function itself, "
            "as in tofuse.compile(model); for a decorator with options, pass the options alone"
        )


register_fork_handlers()
RECOMPILATIONS = 256  # per function; equals Dynamo's `accumulated_recompile_limit`
