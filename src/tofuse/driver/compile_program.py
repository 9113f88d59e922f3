"""From a program of Dynamo to machine code, in twelve steps.

1. `compile_program`, Dynamo's callback: PyTorch runs programs that may not be compiled
2. `_program_variants`: the program for all calls, and variants for some
3. `_compile_variant`: the passes before autograd
4. `_load_or_compile`: a program kept on disk, or AOTAutograd's graphs, compiled
5. `compile_graph`: ATen calls to a Graph
6. `compile_captured`: graph passes, fusion, plan
7. `build_program`: kernels, plan, link
8. `load_kernels`: one text for each distinct kernel
9. `CpuBackend.load`: text without names; launchers
10. `LinkedCode.compile`: a text is compiled once in a process
11. `object_codes`: object files kept on disk, or compiled by several threads
12. `_compile`: LLVM
"""

from __future__ import annotations

import functools
import inspect
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

import torch
from torch.fx import GraphModule

from tofuse.cache.fingerprint import fingerprint
from tofuse.cache.guarded_codes import StoredProgram
from tofuse.cache.programs import is_cacheable, load_program, store_program
from tofuse.capture.aot.aot_graphs import (
    AOTGraphs,
    AtenGraph,
    NeedsAutograd,
    NeedsEager,
    NeedsInference,
)
from tofuse.capture.aot.backward_trace import complete_backward_trace
from tofuse.capture.aot.boxed import BoxedFunction, CompiledFunction
from tofuse.capture.decomp.decompose import decompositions
from tofuse.capture.dynamo.async_collectives import unwrap_async_inputs, wait_for_arguments
from tofuse.capture.dynamo.dynamic_results import mark_dynamic_results
from tofuse.capture.dynamo.eager_program import EagerProgram, eager_program
from tofuse.capture.dynamo.graph_breaks import bucket_notes
from tofuse.capture.dynamo.legality import fallback_reason, modes_active, returns_only_views
from tofuse.capture.dynamo.overlap_guard import overlap_guard
from tofuse.capture.dynamo.returned_views import returns_symbolic_views, split_returned_views
from tofuse.capture.dynamo.scalar_inputs import add_scalar_inputs, read_scalars
from tofuse.capture.dynamo.specialize_sizes import SymbolicProgram, symbolic_program
from tofuse.capture.fx.node_tensors import module_tensors, requires_grad, symbolic_floats
from tofuse.capture.pre_autograd.channels_last import channels_last
from tofuse.capture.pre_autograd.frozen_parameters import freeze_parameters, split_parameter_calls
from tofuse.cost.call_overhead import PACKED_IS_FASTER
from tofuse.dispatch.dispatcher import NEW_KEY, Dispatcher
from tofuse.driver.autotune_program import fastest_program
from tofuse.driver.capture_record import Captured
from tofuse.driver.compile_graph import compile_graph, recomputable_finder
from tofuse.driver.compiled_graph import CompiledGraph, Findings
from tofuse.driver.context import CompileContext
from tofuse.driver.first_call import add_eager_calls
from tofuse.driver.function_record import FunctionRecord
from tofuse.driver.pipeline import PRE_AUTOGRAD_PASSES, run_traced_passes
from tofuse.driver.stored_program import stored_program
from tofuse.errors import TofuseWarning, first_line
from tofuse.gc_pause import pause_gc
from tofuse.ir.runtime_kind import InferenceRuntime, RuntimeKind
from tofuse.runtime.autograd_program import make_program
from tofuse.torch_internals.autograd_compiler import aot_autograd
from tofuse.torch_internals.dynamo import (
    SkipFrame,
    TorchDynamoException,
    compile_lock,
    compiling_session,
    innermost_fn,
)
from tofuse.torch_internals.private_names import unsupported_capture
from tofuse.torch_internals.size_guards import SizeGuards
from tofuse.torch_internals.symbolic_shapes import DATA_DEPENDENCE_ERRORS


def compile_program(
    function: FunctionRecord, gm: GraphModule, example_inputs: Sequence[object]
) -> CompiledFunction:
    """Return a callable for one of Dynamo's programs; PyTorch runs it if it is not compiled."""
    if (missing := unsupported_capture("dynamo")) is not None:
        function.add_fallback(missing)
        return gm.forward
    run: CompiledFunction = gm.forward
    eager = run
    capture = function.capture
    function.begin_program(gm)
    _leave_coroutines(function)
    scalars: Sequence[int] = ()
    waits: Sequence[int] = ()
    try:
        example_inputs, waits = unwrap_async_inputs(example_inputs)
        program, inputs, scalars = add_scalar_inputs(gm, example_inputs)
        run = eager = eager_program(program)
        reason = fallback_reason(program, inputs)
        if reason is None:
            capture.earlier.add(gm, inputs, next(iter(capture.traced), None))
            run = _program_variants(program, eager, inputs, function)
        else:
            function.add_fallback(reason)
        if scalars or waits:
            capture.program = None
    except TorchDynamoException:
        raise  # to Dynamo
    except NeedsEager as reason:
        function.add_fallback(f"{reason}")
    except DATA_DEPENDENCE_ERRORS as error:
        why = f"the program branches on a size that depends on data: {first_line(error)}"
        function.add_fallback(why)
    except Exception as error:
        function.add_fallback(function.context.fallback_reason(error, gm))
    if run is eager:
        run, waits = _eager_fallback(function, eager), ()  # PyTorch's operators wait by themselves
    if function.context.capture_only:
        return _stop
    return mark_dynamic_results(wait_for_arguments(read_scalars(run, scalars), waits), gm)


def _leave_coroutines(function: FunctionRecord) -> None:
    """Raise SkipFrame if a coroutine function is part of the traced frame: Python runs the frame.

    Dynamo takes the call of a coroutine function for its result, and the frame that it makes for
    one is too small: CPython writes behind it.
    """
    coroutines = [c for c in function.capture.traced if c.co_flags & inspect.CO_COROUTINE]
    if coroutines:
        reason = f"{coroutines[0].co_name} is a coroutine function, which Dynamo cannot capture"
        function.add_fallback(reason)
        raise SkipFrame(reason)


def _stop(*args: object) -> NoReturn:
    raise Captured


def _eager_fallback(function: FunctionRecord, eager: CompiledFunction) -> CompiledFunction:
    """Return a program that eager runs, and that says so at each call."""

    def run(*args: object) -> object:
        function.hand_back.calls.in_eager += 1
        return eager(*args)

    return run if function.context.decides else eager


def _program_variants(
    gm: GraphModule, eager: EagerProgram, inputs: Sequence[object], function: FunctionRecord
) -> Dispatcher[object]:
    """Return the compiled program, with variants; `eager` is the program as it was captured.

    PyTorch runs calls that need its operators, and calls whose written arguments overlap others.
    The first call decides who runs the others (`FirstCall`). Recurring sizes of a program with
    symbolic sizes get a program of their own if this changes no bits, or with `specialize=True`.
    Under `tune="measure"`, the first call chooses between this program and PyTorch.
    """
    context, add_variant = function.context, function.add_variant
    specializes = context.config.specialize is not False and not context.explains
    symbolic = symbolic_program(gm, inputs) if specializes else None
    overlaps = overlap_guard(gm)
    compile_variant = functools.partial(_compile_variant, function, eager)
    dispatcher = Dispatcher[object](eager, add_variant)
    begin = time.perf_counter()
    compiled = compile_variant(gm, inputs)
    function.capture.program = compiled.stored
    dispatcher.general = compiled.run
    seconds = time.perf_counter() - begin
    add_eager_calls(dispatcher, eager, overlaps, inputs, function, compiled.findings.prediction)
    has_fixed_bits = compiled.findings.has_fixed_bits and not (symbolic and symbolic.floats)
    if symbolic is not None and (context.config.specialize or has_fixed_bits):
        make = functools.partial(_static_variant, context, symbolic, compile_variant, dispatcher)
        dispatcher.specialize(symbolic.key, make, seconds)
    if context.config.tune != "measure" or context.config.verify:  # which is not timed
        return dispatcher
    fastest = Dispatcher[object](dispatcher, add_variant)

    def make_fastest(*args: object) -> tuple[CompiledFunction, str]:
        run, why = fastest_program(dispatcher, eager.module, args, context.config)
        if run is not dispatcher:
            function.add_fallback(f"the compiled program is slower; {why}")
        return run, why

    fastest.specialize(lambda *args: "any", make_fastest, NEW_KEY)
    return fastest


def _static_variant(
    context: CompileContext,
    symbolic: SymbolicProgram,
    compile_variant: Callable[[GraphModule, Sequence[object]], CompiledProgram],
    dispatcher: Dispatcher[object],
    *args: object,
) -> tuple[CompiledFunction, str] | None:
    """Return the program for the sizes of a call; None if it cannot be compiled now.

    That is while a mode would see its capture, or while another thread compiles: the call does not
    wait, because the program for all sizes can run it.
    """
    if modes_active() or not compile_lock.acquire(blocking=False):
        return None
    try:
        run = symbolic.specialize(args, lambda *program: compile_variant(*program).run)
        return run, f"the sizes {symbolic.key(*args)} recur"
    except Exception as error:
        context.raise_if_fatal(error)
        warnings.warn(
            f"tofuse cannot specialize a program for these sizes and runs the one for all sizes: "
            f"{error}",
            TofuseWarning,
            stacklevel=3,
        )
        return dispatcher.general, f"these sizes cannot be specialized: {error}"
    finally:
        compile_lock.release()


@dataclass(frozen=True, eq=False)
class _Program:
    """A program of Dynamo after the passes before autograd, and its key on disk, if it has one."""

    gm: GraphModule
    notes: tuple[str, ...]
    key: tuple[str, ...] | None
    sizes: SizeGuards
    eager: EagerProgram
    images_converted: bool  # by the pass `channels_last`

    @functools.cached_property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that it has as attributes."""
        return list(module_tensors(self.gm).values())

    def bind(
        self, kind: RuntimeKind, forward: BoxedFunction, backward: BoxedFunction
    ) -> CompiledFunction:
        """Return the program that runs on its compiled graphs."""
        # with tensors as attributes, the eager program could not take aliases of them
        eager = None if self.tensors else self.run_eager
        program = make_program(kind, forward, backward, eager)
        return functools.partial(program, *self.tensors) if self.tensors else program

    def stored(self, key: tuple[str, ...]) -> StoredProgram | None:
        """Return how a later process finds the program on disk; None if it cannot."""
        is_static = not self.tensors and not self.sizes.symbols
        return stored_program(self.gm, self.eager, key) if is_static else None

    def run_eager(self, arguments: Sequence[object], aliases: Sequence[object]) -> Sequence[object]:
        """Run the program in eager, for a second derivative."""
        results: Sequence[object] = self.gm.forward(*aliases)
        return results


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """A compiled program, what its graphs have found, and how a later process finds it on disk.

    `stored` is None if a later process cannot. A backward may be compiled at its first call.
    """

    run: CompiledFunction
    findings: Findings
    stored: StoredProgram | None = None


@pause_gc()
def _compile_variant(
    function: FunctionRecord,
    eager: EagerProgram,
    gm: GraphModule,
    inputs: Sequence[object],
) -> CompiledProgram:
    """Return the compiled program, without `torch._dynamo.disable`: Dynamo disables itself.

    The graph contains the writes into arguments if autograd does not record the program. Other
    threads may call Dynamo's programs meanwhile.
    """
    with compile_lock, compiling_session():
        notes, images_converted = bucket_notes(gm), False
        if function.context.config.packs_weights:
            notes += freeze_parameters(gm)
        for pre_autograd_pass in PRE_AUTOGRAD_PASSES:
            before = gm
            gm, more = pre_autograd_pass(gm)
            notes += more
            images_converted |= pre_autograd_pass is channels_last and gm is not before
        frozen = split_parameter_calls(gm, inputs)
        gm, inputs = (gm, inputs) if frozen is None else (frozen.program, frozen.inputs)
        keep, views = not requires_grad(gm), split_returned_views(gm)
        gm = gm if views is None else views.program
        sizes = SizeGuards([*inputs, *symbolic_floats(gm)])
        key = fingerprint(gm, inputs, sizes) if is_cacheable(function.context.config) else None
        program = _Program(gm, notes, key, sizes, eager, images_converted)
        compiled: CompiledProgram | None = None
        with suppress(NeedsAutograd, NeedsInference):
            compiled = _load_or_compile(program, inputs, function, keep_mutations=keep)
        if compiled is None:
            compiled = _load_or_compile(program, inputs, function, keep_mutations=not keep)
        if views is not None:
            compiled = CompiledProgram(views.bind(compiled.run), compiled.findings)
        if frozen is not None:
            findings = replace(compiled.findings, predictions=(PACKED_IS_FASTER,))
            compiled = CompiledProgram(frozen.bind(compiled.run), findings)
        return compiled


def _load_or_compile(
    program: _Program,
    inputs: Sequence[object],
    function: FunctionRecord,
    *,
    keep_mutations: bool,
) -> CompiledProgram:
    """Return the program that is kept on disk, or compile it and keep it."""
    gm, context, config = program.gm, function.context, function.context.config
    key = None if program.key is None else (f"writes {keep_mutations}", *program.key)
    stored = None if key is None or context.explains else load_program(key, config)
    if stored is not None and key is not None and program.sizes.accept(stored.guards):
        loaded, findings = function.load_graphs(stored)
        run = program.bind(stored.kind, loaded[0].run, loaded[-1].run)
        return CompiledProgram(run, findings, program.stored(key))

    def keep(compiled: Sequence[CompiledGraph]) -> None:
        guards = program.sizes.guards()
        if key is not None and kind is not None and guards is not None and not context.explains:
            graphs = [(c.artifact, c.tangents) for c in compiled]
            store_program(key, kind, guards, graphs, config)

    compiled_at_once: list[CompiledGraph] = []

    def compile_backward(graph: AtenGraph, args: Sequence[object]) -> BoxedFunction:
        compiled = compile_graph(graph, context, function.fuel, args=args)
        backward = function.add_graph(compiled)
        compiled_at_once.append(backward)
        keep([forward, backward])
        return backward.run

    passes = functools.partial(
        run_traced_passes, claims=context.claims, images_converted=program.images_converted
    )
    recomputable = recomputable_finder(context)
    graphs = AOTGraphs(
        passes, compile_backward, make_program, config.memory_budget, keep_mutations, recomputable
    )
    wrapped = trace_graphs(gm, inputs, graphs, context)
    kind = graphs.runtime_kind(inputs, views=False, module_tensors=program.tensors)
    lazy = graphs.forward()
    forward = compile_graph(lazy.graph, context, function.fuel, program.notes)
    function.add_graph(forward)  # no backward: it has no variants
    lazy.finish(forward.run)
    if "backward" in graphs.graphs:  # AOTAutograd asked for it at once: sizes are symbolic
        graphs.backward().compiled()
    pure = kind is not None and not kind.mutated
    findings = sum((g.findings for g in (forward, *compiled_at_once)), Findings(pure=pure))
    if kind is None:
        return CompiledProgram(_with_wrappers(gm, wrapped), findings)
    is_kept = key is not None and program.sizes.guards() is not None
    on_disk = program.stored(key) if key is not None and is_kept else None
    if isinstance(kind, InferenceRuntime):
        keep([forward])
        return CompiledProgram(program.bind(kind, forward.run, forward.run), findings, on_disk)
    if context.capture_only:
        graphs.backward().compiled()
    return CompiledProgram(program.bind(kind, forward.run, graphs.backward()), findings, on_disk)


def _with_wrappers(gm: GraphModule, wrapped: CompiledFunction) -> CompiledFunction:
    """Return a program that needs AOTAutograd's wrappers, unless it returns nothing but views."""
    if returns_only_views(gm):
        return gm.forward
    if returns_symbolic_views(gm):
        raise NeedsEager("it returns a view of symbolic sizes, which AOTAutograd would misplace")
    return wrapped


def trace_graphs(
    gm: GraphModule, inputs: Sequence[object], graphs: AOTGraphs, context: CompileContext
) -> CompiledFunction:
    """Trace a program into `graphs`; return it with AOTAutograd's wrappers around them."""
    backend = aot_autograd(
        fw_compiler=graphs.compiler("forward"),
        bw_compiler=graphs.compiler("backward"),
        inference_compiler=graphs.compiler("inference"),
        partition_fn=graphs.partition,
        decompositions=decompositions(
            decompose_random="llvm" in context.config.executors,
            claims=context.claims,
            has_symbolic_floats=bool(symbolic_floats(gm)),
            trains=requires_grad(gm),
        ),
        keep_inference_input_mutations=graphs.inference_only,
    )
    with complete_backward_trace(gm):
        wrapped: CompiledFunction = innermost_fn(backend(gm, inputs))
    return wrapped
