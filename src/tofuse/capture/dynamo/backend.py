"""The Dynamo backend: passes before autograd, then AOTAutograd with our decompositions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
from torch.fx import GraphModule

from tofuse.capture.aot.boxed import BoxedFunction
from tofuse.capture.aot.double_backward import EagerProgram
from tofuse.capture.aot.gc_pause import pause_gc
from tofuse.capture.aot.handoff import AOTArtifacts, CompileGraph, RuntimeKind
from tofuse.capture.aot.runtime_inference import InferenceRuntime
from tofuse.capture.decomp.decompose import decompositions
from tofuse.capture.dynamo.derivative_guard import DoubleBackwardState, add_derivative_guard
from tofuse.capture.dynamo.legality import fallback_reason, returns_only_views
from tofuse.capture.dynamo.overlap_guard import add_overlap_guard
from tofuse.capture.dynamo.scalar_inputs import with_scalar_inputs
from tofuse.capture.dynamo.specialize_sizes import specialize_sizes
from tofuse.capture.fx.capture_passes import CapturePasses
from tofuse.capture.fx.node_tensors import module_tensors
from tofuse.capture.fx.symbolic_floats import count_float_guards, symbolic_floats
from tofuse.capture.lower.executor_claims import ClaimPredicate, claim_nothing
from tofuse.torch_internals.autograd_compiler import aot_autograd
from tofuse.torch_internals.dynamo import TorchDynamoException, innermost_fn
from tofuse.torch_internals.torch_types import Backend, CompiledFunction


def aot_backend(
    compile_graph: CompileGraph,
    passes: CapturePasses,
    *,
    decompose_random: bool = True,
    memory_budget: float | None = None,
    claims: ClaimPredicate = claim_nothing,
    programs: ProgramStore | None = None,
    on_fallback: Callable[[str], None] = lambda reason: None,
    on_failure: Callable[[Exception], None] | None = None,
    specialize: bool = False,
) -> Backend:
    """Return a backend for `torch.compile` that passes every ATen graph to `compile_graph`.

    `compile_graph(gm, phase)` with phase "forward", "backward" or "inference" returns a callable
    that takes one list of flat arguments, which it may empty, and returns the flat outputs.
    Backward graphs are compiled when first needed, or at once if sizes are symbolic.

    PyTorch runs a program that may not be compiled, after a call of `on_fallback(reason)`, and a
    program on which AOTAutograd fails, unless `on_failure(error)` raises. With `specialize`,
    programs with symbolic sizes are compiled again for static sizes that recur.
    """

    compiler = _ProgramCompiler(
        compile_graph, passes, decompose_random, memory_budget, claims, programs
    )

    @pause_gc()
    def build(gm: GraphModule, inputs: Sequence[object]) -> CompiledFunction:
        program = gm
        notes: tuple[str, ...] = ()
        for pre_autograd_pass in passes.pre_autograd:
            program, more = pre_autograd_pass(program)
            notes += more
        double_backward = program.meta[DOUBLE_BACKWARD_KEY] = DoubleBackwardState()
        compiled = compiler.compile(program, notes, inputs)
        # the guards run `gm` in eager, with the changes of the passes that work in place
        return add_derivative_guard(gm, add_overlap_guard(gm, compiled), double_backward)

    def backend(gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        reason = fallback_reason(gm, example_inputs)
        if reason is not None:
            on_fallback(reason)
            return gm.forward
        try:
            if specialize:
                return specialize_sizes(gm, example_inputs, build)
            return build(gm, example_inputs)
        except TorchDynamoException:
            raise  # to Dynamo
        except Exception as error:
            if on_failure is None:
                raise
            on_failure(error)
            return gm.forward

    return with_scalar_inputs(backend)


class ProgramStore(Protocol):
    """Compiled programs by fingerprint, kept after the process ends."""

    def fingerprint(
        self, gm: GraphModule, inputs: Sequence[object], /
    ) -> tuple[str, ...] | None: ...

    def load(self, key: Sequence[str], /) -> tuple[RuntimeKind, list[BoxedFunction]] | None: ...

    def store(
        self, key: Sequence[str], kind: RuntimeKind, functions: Sequence[BoxedFunction], /
    ) -> None: ...


@dataclass(frozen=True)
class _ProgramCompiler:
    """Compiles one of Dynamo's programs, or loads it; see `aot_backend` for the fields."""

    compile_graph: CompileGraph
    passes: CapturePasses
    decompose_random: bool
    memory_budget: float | None
    claims: ClaimPredicate
    programs: ProgramStore | None

    def compile(
        self, gm: GraphModule, notes: tuple[str, ...], inputs: Sequence[object]
    ) -> CompiledFunction:
        """Return the compiled program; `notes` are for the report.

        The graph contains the writes into arguments if autograd does not record the program.
        """
        fingerprint = None if self.programs is None else self.programs.fingerprint(gm, inputs)
        if not _requires_grad(gm):
            try:
                return self._load_or_compile(gm, notes, inputs, fingerprint, keep_mutations=True)
            except _NeedsAutograd:
                pass
        return self._load_or_compile(gm, notes, inputs, fingerprint, keep_mutations=False)

    def _load_or_compile(
        self,
        gm: GraphModule,
        notes: tuple[str, ...],
        inputs: Sequence[object],
        fingerprint: tuple[str, ...] | None,
        *,
        keep_mutations: bool,
    ) -> CompiledFunction:
        if self.programs is None or fingerprint is None:
            return self._compile(gm, notes, inputs, keep_mutations, lambda kind, functions: None)
        key = (f"writes {keep_mutations}", *fingerprint)
        stored = self.programs.load(key)
        if stored is None:
            store, guards_before = self.programs.store, count_float_guards(gm)

            def store_general(kind: RuntimeKind, functions: Sequence[BoxedFunction]) -> None:
                if count_float_guards(gm) == guards_before:  # not specialized to values of floats
                    store(key, kind, functions)

            return self._compile(gm, notes, inputs, keep_mutations, store_general)
        kind, functions = stored
        tensors = list(module_tensors(gm).values())
        program = kind.make_program(
            functions[0], lambda: functions[-1], _eager_program(gm, tensors)
        )
        return _bind(tensors, program)

    def _compile(
        self,
        gm: GraphModule,
        notes: tuple[str, ...],
        inputs: Sequence[object],
        keep_mutations: bool,
        store: Callable[[RuntimeKind, Sequence[BoxedFunction]], None],
    ) -> CompiledFunction:
        """Return the program without `torch.compiler.disable`: Dynamo disables itself around it.

        `store` is called when all graphs of a program without AOTAutograd's wrappers are compiled.
        """
        artifacts = AOTArtifacts(self.compile_graph, self.passes, self.memory_budget, notes)
        backend: Backend = aot_autograd(
            fw_compiler=artifacts.compiler("forward"),
            bw_compiler=artifacts.compiler("backward"),
            inference_compiler=artifacts.compiler("inference"),
            partition_fn=_refuse_training if keep_mutations else artifacts.partition,
            decompositions=decompositions(
                decompose_random=self.decompose_random,
                claims=self.claims,
                has_symbolic_floats=bool(symbolic_floats(gm)),
            ),
            keep_inference_input_mutations=keep_mutations,
        )
        wrapped = innermost_fn(backend(gm, inputs))
        tensors = list(module_tensors(gm).values())
        kind = artifacts.runtime_kind(inputs, views=False, module_tensors=tensors)
        if kind is None:
            return gm.forward if returns_only_views(gm) else wrapped
        artifacts.on_compiled = functools.partial(store, kind)
        if isinstance(kind, InferenceRuntime):
            artifacts.on_compiled([artifacts.forward()])
        program = kind.make_program(
            artifacts.forward(), artifacts.backward, _eager_program(gm, tensors)
        )
        return _bind(tensors, program)


def _bind(tensors: Sequence[torch.Tensor], program: CompiledFunction) -> CompiledFunction:
    """Return the program with the module's tensors bound as its first arguments."""
    return functools.partial(program, *tensors) if tensors else program


def _eager_program(gm: GraphModule, tensors: Sequence[torch.Tensor]) -> EagerProgram | None:
    """Return the eager program for a double backward.

    None if the program has tensors as attributes, because it could not take aliases of them.
    """
    double_backward = gm.meta[DOUBLE_BACKWARD_KEY]

    def eager(arguments: Sequence[object], aliases: Sequence[object]) -> Sequence[object]:
        double_backward.requested = True
        results: Sequence[object] = gm.forward(*aliases)
        return results

    return None if tensors else eager


DOUBLE_BACKWARD_KEY = "tofuse_double_backward"  # in a program's meta


class _NeedsAutograd(Exception):
    """Autograd records a program that was compiled as inference."""


def _refuse_training(joint: GraphModule, inputs: Sequence[object], **options: object) -> NoReturn:
    """Raise: the partition function of programs that should not need one."""
    raise _NeedsAutograd


def _requires_grad(gm: GraphModule) -> bool:
    """Return whether a result of Dynamo's program requires grad."""
    outputs = next(n for n in gm.graph.nodes if n.op == "output").all_input_nodes
    values = [n.meta.get("example_value") for n in outputs]
    return any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
