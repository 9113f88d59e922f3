"""From a program of Dynamo to machine code, in twelve steps.

1. `compile_program`, Dynamo's callback: PyTorch runs programs that may not be compiled
2. `_program_variants`: the program for all calls, and variants for some
3. `_compile_variant`: the passes before autograd
4. `_load_or_compile`: a program kept on disk, or AOTAutograd's graphs, compiled
5. `compile_graph`: ATen calls to a Graph
6. `compile_captured`: graph passes, fusion, plan
7. `build_program`: kernels, plan, link
8. `load_kernels`: one text for each distinct kernel
9. `LinkedCode.compile`: a text is compiled once in a process
10. `object_codes`: object files kept on disk, or compiled
11. `compile_objects`: several threads
12. `_compile`: LLVM
"""

from __future__ import annotations

import functools
import pickle
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch.fx import GraphModule

from tofuse.cache.fingerprint import (
    fingerprint,
    is_unchanged,
    torch_state,
    trusted_calls,
)
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
from tofuse.capture.dynamo.eager_program import eager_program
from tofuse.capture.dynamo.graph_breaks import bucket_notes
from tofuse.capture.dynamo.guarded_code import pickled_graph
from tofuse.capture.dynamo.legality import (
    fallback_reason,
    modes_active,
    needs_eager,
    returns_only_views,
)
from tofuse.capture.dynamo.overlap_guard import OverlapGuard, overlap_guard
from tofuse.capture.dynamo.returned_views import split_returned_views
from tofuse.capture.dynamo.scalar_inputs import add_scalar_inputs, read_scalars
from tofuse.capture.dynamo.specialize_sizes import SymbolicProgram, symbolic_program
from tofuse.capture.fx.node_tensors import (
    float_guard_counter,
    module_tensors,
    symbolic_floats,
)
from tofuse.capture.pre_autograd.channels_last import channels_last
from tofuse.driver.autotune_program import fastest_program
from tofuse.driver.capture_record import Captured
from tofuse.driver.compile_graph import CompiledGraph, compile_graph, load_graph
from tofuse.driver.context import CompileContext
from tofuse.driver.pipeline import PRE_AUTOGRAD_PASSES, run_traced_passes
from tofuse.driver.variants import NEW_KEY, Dispatcher, Variant
from tofuse.errors import TofuseWarning, first_line
from tofuse.gc_pause import pause_gc
from tofuse.ir.runtime_kind import InferenceRuntime, RuntimeKind
from tofuse.runtime.autograd_program import make_program
from tofuse.torch_internals.autograd_compiler import aot_autograd
from tofuse.torch_internals.dynamo import (
    TorchDynamoException,
    compile_lock,
    compiling_session,
    innermost_fn,
)
from tofuse.torch_internals.private_names import unsupported_capture
from tofuse.torch_internals.symbolic_shapes import DATA_DEPENDENCE_ERRORS


def compile_program(
    context: CompileContext, gm: GraphModule, example_inputs: Sequence[object]
) -> CompiledFunction:
    """Return a callable for one of Dynamo's programs; PyTorch runs it if it is not compiled."""
    if (missing := unsupported_capture("dynamo")) is not None:
        context.report_fallback(missing)
        return gm.forward
    run: CompiledFunction = gm.forward
    context.record.begin_program()
    scalars: Sequence[int] = ()
    waits: Sequence[int] = ()
    try:
        example_inputs, waits = unwrap_async_inputs(example_inputs)
        program, inputs, scalars = add_scalar_inputs(gm, example_inputs)
        run = eager_program(program)
        reason = fallback_reason(program, inputs)
        if reason is None:
            run = _program_variants(program, inputs, context)
        else:
            context.report_fallback(reason)
            waits = ()  # PyTorch's operators wait by themselves
        if scalars or waits:
            context.record.program = None
    except TorchDynamoException:
        raise  # to Dynamo
    except NeedsEager as reason:
        context.report_fallback(f"{reason}")
        waits = ()
    except DATA_DEPENDENCE_ERRORS as error:
        why = f"the program branches on a size that depends on data: {first_line(error)}"
        context.report_fallback(why)
    except Exception as error:
        context.fall_back(error, gm)
    return _stop if context.capture_only else wait_for_arguments(read_scalars(run, scalars), waits)


def _stop(*args: object) -> NoReturn:
    raise Captured


def _program_variants(
    gm: GraphModule, inputs: Sequence[object], context: CompileContext
) -> Dispatcher[object]:
    """Return the compiled program, with variants.

    PyTorch runs calls that need its operators, calls whose written arguments overlap others, and
    all calls after a second derivative was taken, because a training loop repeats it in each step.
    Sizes of a program with symbolic sizes that recur get a program of their own. Under
    `tune="measure"`, the first call chooses between this program and PyTorch.
    """
    specializes = context.config.specialize and not context.reports
    symbolic = symbolic_program(gm, inputs) if specializes else None
    eager = eager_program(gm)
    dispatcher = Dispatcher[object](eager, context.report_variant)

    prefer_eager = functools.partial(_prefer_eager, dispatcher, eager)
    compile_variant = functools.partial(_compile_variant, context, prefer_eager)
    begin = time.perf_counter()
    dispatcher.default = compile_variant(gm, inputs)
    seconds = time.perf_counter() - begin
    # the variants run `gm` in eager, with the changes of the passes that work in place
    dispatcher.guarded = _eager_variants(eager, overlap_guard(gm))
    if symbolic is not None:
        make = functools.partial(_static_variant, context, symbolic, compile_variant, dispatcher)
        dispatcher.specialize(symbolic.key, make, seconds)
    if context.config.tune != "measure":
        return dispatcher
    fastest = Dispatcher[object](dispatcher, context.report_variant)
    make_fastest = lambda *args: fastest_program(dispatcher, gm, args, context)  # noqa: E731
    fastest.specialize(lambda *args: "any", make_fastest, NEW_KEY)
    return fastest


def _eager_variants(
    eager: Callable[..., object], overlaps: OverlapGuard | None
) -> tuple[Variant[object], ...]:
    """Return the variants for calls that PyTorch must run."""
    variant = Variant(needs_eager, eager, "the call needs PyTorch's operators")
    if overlaps is None:
        return (variant,)
    return variant, Variant(overlaps, eager, "a written argument overlaps another")


def restore_program(stored: StoredProgram, context: CompileContext) -> Dispatcher[object] | None:
    """Return a program that is kept on disk, with its variants; None if it is no longer there."""
    if not is_unchanged(stored.torch_state, stored.calls):
        return None
    found = load_program(stored.identity, context.config)
    if found is None:
        return None
    gm: list[GraphModule] = []

    def eager(*args: object) -> Sequence[object]:
        if not gm:
            gm.append(pickle.loads(stored.graph))
        results: Sequence[object] = gm[0].forward(*args)
        return results

    dispatcher = Dispatcher[object](eager, context.report_variant)

    def run_eager(arguments: Sequence[object], aliases: Sequence[object]) -> Sequence[object]:
        _prefer_eager(dispatcher, eager)
        return eager(*aliases)

    kind, graphs = found
    boxed = [load_graph(run, artifact, context).run for run, artifact in graphs]
    dispatcher.default = make_program(kind, boxed[0], boxed[-1], run_eager)
    dispatcher.guarded = _eager_variants(eager, stored.overlaps)
    return dispatcher


def _prefer_eager(dispatcher: Dispatcher[object], eager: Callable[..., object]) -> None:
    reason = "a second derivative was taken, which PyTorch computes"
    dispatcher.prefer(Variant(lambda *args: True, eager, reason))


def _static_variant(
    context: CompileContext,
    symbolic: SymbolicProgram,
    compile_variant: Callable[[GraphModule, Sequence[object]], CompiledFunction],
    dispatcher: Dispatcher[object],
    *args: object,
) -> tuple[CompiledFunction, str] | None:
    """Return the program for the sizes of a call; None while a mode would see its capture."""
    if modes_active():
        return None
    try:
        return symbolic.specialize(args, compile_variant), f"the sizes {symbolic.key(*args)} recur"
    except Exception as error:
        context.raise_if_fatal(error)
        warnings.warn(
            f"tofuse cannot specialize a program for these sizes and runs the one for all sizes: "
            f"{error}",
            TofuseWarning,
            stacklevel=3,
        )
        return dispatcher.default, f"these sizes cannot be specialized: {error}"


@dataclass(frozen=True, eq=False)
class _Program:
    """A program of Dynamo after the passes before autograd, and its key on disk, if it has one."""

    gm: GraphModule
    notes: tuple[str, ...]
    key: tuple[str, ...] | None
    prefer_eager: Callable[[], None]
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

    def run_eager(self, arguments: Sequence[object], aliases: Sequence[object]) -> Sequence[object]:
        """Run the program in eager, for a second derivative."""
        self.prefer_eager()
        results: Sequence[object] = self.gm.forward(*aliases)
        return results


@pause_gc()
def _compile_variant(
    context: CompileContext,
    prefer_eager: Callable[[], None],
    gm: GraphModule,
    inputs: Sequence[object],
) -> CompiledFunction:
    """Return the compiled program, without `torch._dynamo.disable`: Dynamo disables itself.

    The graph contains the writes into arguments if autograd does not record the program. Other
    threads may call Dynamo's programs meanwhile.
    """
    with compile_lock, compiling_session():
        notes, images_converted = bucket_notes(gm), False
        for pre_autograd_pass in PRE_AUTOGRAD_PASSES:
            before = gm
            gm, more = pre_autograd_pass(gm)
            notes += more
            images_converted |= pre_autograd_pass is channels_last and gm is not before
        keep, views = not _requires_grad(gm), split_returned_views(gm)
        gm = gm if views is None else views.program
        kept = is_cacheable(context.config) and not context.reports
        key = fingerprint(gm, inputs) if kept else None
        program = _Program(gm, notes, key, prefer_eager, images_converted)
        run: CompiledFunction | None = None
        with suppress(NeedsAutograd, NeedsInference):
            run = _load_or_compile(program, inputs, context, keep_mutations=keep)
        if run is None:
            run = _load_or_compile(program, inputs, context, keep_mutations=not keep)
        if views is None:
            return run
        context.record.program = None
        return views.bind(run)


def _load_or_compile(
    program: _Program,
    inputs: Sequence[object],
    context: CompileContext,
    *,
    keep_mutations: bool,
) -> CompiledFunction:
    """Return the program that is kept on disk, or compile it and keep it."""
    gm, config = program.gm, context.config
    key = None if program.key is None else (f"writes {keep_mutations}", *program.key)
    stored = None if key is None else load_program(key, config)
    if stored is not None and key is not None:
        boxed = [load_graph(run, artifact, context).run for run, artifact in stored[1]]
        context.record.program = _stored_program(program, key)
        return program.bind(stored[0], boxed[0], boxed[-1])
    count_float_guards = float_guard_counter(gm)
    float_guards = count_float_guards()

    def keep(compiled: Sequence[CompiledGraph]) -> None:
        if key is not None and kind is not None and count_float_guards() == float_guards:
            store_program(key, kind, [(c.artifact, c.tangents) for c in compiled], config)

    def compile_backward(graph: AtenGraph) -> BoxedFunction:
        backward = compile_graph(graph, context)
        keep([forward, backward])
        return backward.run

    passes = functools.partial(
        run_traced_passes, claims=context.claims, images_converted=program.images_converted
    )
    graphs = AOTGraphs(passes, compile_backward, make_program, config.memory_budget, keep_mutations)
    wrapped = trace_graphs(gm, inputs, graphs, context)
    kind = graphs.runtime_kind(inputs, views=False, module_tensors=program.tensors)
    lazy = graphs.forward()
    forward = compile_graph(lazy.graph, context, program.notes)
    lazy.finish(forward.run)
    if "backward" in graphs.graphs:  # AOTAutograd asked for it at once: sizes are symbolic
        graphs.backward().compiled()
    if kind is not None and key is not None and count_float_guards() == float_guards:
        context.record.program = _stored_program(program, key)
    if kind is None:
        return gm.forward if returns_only_views(gm) else wrapped
    if isinstance(kind, InferenceRuntime):
        keep([forward])
        return program.bind(kind, forward.run, forward.run)
    if context.capture_only:
        graphs.backward().compiled()
    return program.bind(kind, forward.run, graphs.backward())


def _stored_program(program: _Program, key: tuple[str, ...]) -> StoredProgram | None:
    """Return how a later process finds a program that is kept on disk; None if it cannot."""
    graph = None if program.tensors else pickled_graph(program.gm)
    if graph is None:
        return None
    calls = trusted_calls(program.gm)
    return StoredProgram(key, torch_state(), calls, graph, overlap_guard(program.gm))


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
        ),
        keep_inference_input_mutations=graphs.inference_only,
    )
    with complete_backward_trace(gm):
        wrapped: CompiledFunction = innermost_fn(backend(gm, inputs))
    return wrapped


def _requires_grad(gm: GraphModule) -> bool:
    """Return whether a result of Dynamo's program requires grad."""
    outputs = next(n for n in gm.graph.nodes if n.op == "output").all_input_nodes
    values = [n.meta.get("example_value") for n in outputs]
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
