"""The graphs that AOTAutograd makes of one program, and how the program runs on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.autograd.graph import increment_version
from torch.fx import GraphModule

from tofuse.capture.aot.boxed import BoxedFunction, ProgramMaker
from tofuse.capture.aot.runtime_inference import inference_runtime
from tofuse.capture.aot.runtime_training import training_runtime
from tofuse.capture.aot.tangent_layouts import relax_tangents
from tofuse.capture.fx.eager_memory import EagerMemory
from tofuse.capture.fx.phases import forward_needs_backward, written_placeholders
from tofuse.capture.joint.partition import partition
from tofuse.capture.joint.recomputed_products import FindRecomputable
from tofuse.errors import CaptureError
from tofuse.gc_pause import pause_gc
from tofuse.ir.runtime_kind import RuntimeKind
from tofuse.torch_internals.autograd_compiler import (
    AOTDispatchCompiler,
    MarkedBoxed,
    OutputType,
    PlainTensorMeta,
    TracingContext,
    ViewAndMutationMeta,
    mark_boxed,
)
from tofuse.torch_internals.dispatch import autocast_on, is_traceable_wrapper_subclass
from tofuse.torch_internals.dynamo import compile_lock

# (graph, number of the forward's outputs) -> the graph after passes, and eager's memory; the number
# is None for an inference graph
TracedPasses = Callable[[GraphModule, int | None], tuple[GraphModule, EagerMemory]]


@dataclass(frozen=True, eq=False)
class AtenGraph:
    """A graph of ATen calls; its phase is "forward", "backward" or "inference".

    `memory` is that of the whole program, in eager and in our partition; None for a part of it.
    """

    gm: GraphModule
    phase: str
    memory: EagerMemory | None


# Compiles a graph. The arguments are those of its first call, or () if no call is waiting for it.
Compiler = Callable[[AtenGraph, Sequence[object]], BoxedFunction]


@dataclass(eq=False, repr=False)
class LazyGraph:
    """A graph that its first call compiles, for its arguments, as a boxed function."""

    graph: AtenGraph
    compile: Compiler
    run: BoxedFunction | None = None

    def __call__(self, args: list[object], /) -> list[torch.Tensor]:
        run = self.run
        return (self.compiled(args) if run is None else run)(args)

    def compiled(self, args: Sequence[object] = ()) -> BoxedFunction:
        """Return the compiled graph. Of several threads, one compiles it and the others wait."""
        with compile_lock, pause_gc():
            if self.run is None:
                self.finish(self.compile(self.graph, args))
            assert self.run is not None
            return self.run

    def finish(self, run: BoxedFunction) -> None:
        """Set the compiled graph; free the graph."""
        self.run = run
        for name in ("graph", "compile"):
            vars(self).pop(name, None)  # a signal handler may have called and compiled it, too


@dataclass(eq=False)
class AOTGraphs:
    """The graphs and the metadata of one program: AOTAutograd's callbacks receive them.

    Nothing is compiled while AOTAutograd traces: `compile` runs when a graph is first called.
    `make_program` returns the program that runs on the compiled graphs. For `find_recomputable`,
    see `recomputed_products`.
    """

    passes: TracedPasses
    compile: Compiler
    make_program: ProgramMaker
    memory_budget: float | None = None
    inference_only: bool = False
    find_recomputable: FindRecomputable | None = None
    graphs: dict[str, LazyGraph] = field(default_factory=dict)  # by phase, as AOTAutograd asks
    context: TracingContext | None = None
    partitioned: tuple[GraphModule, GraphModule] | None = None  # forward and backward
    memory: EagerMemory | None = None

    @property
    def metadata(self) -> ViewAndMutationMeta | None:
        """What AOTAutograd says of the program's arguments and results."""
        return None if self.context is None else self.context.fw_metadata

    def compiler(self, phase: str) -> AOTDispatchCompiler:
        """Return the function that AOTAutograd calls with the graph of a phase."""

        def make_graph(
            gm: GraphModule, example_inputs: Sequence[torch.Tensor | int | torch.SymInt | None]
        ) -> MarkedBoxed:
            if phase != "backward":
                self.context = TracingContext.try_get()
            if phase == "inference":
                if self.inference_only or self._leaves_writes_to_autograd():
                    if self._changes_layouts():  # AOTAutograd fails, or returns wrong results
                        raise NeedsAutograd
                    if not self.inference_only:
                        raise NeedsInference
                gm, self.memory = self.passes(gm, None)
            if phase == "forward" and self.metadata is not None:
                relax_tangents(self.metadata)
            run: BoxedFunction = self._graph(gm, phase)
            if phase == "backward":
                run = _count_writes(gm, run)
            elif self._changes_layouts():
                run = _view_returned_arguments(run)
            return mark_boxed(run)

        return make_graph

    def partition(
        self,
        joint: GraphModule,
        joint_inputs: Sequence[object],
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
    ) -> tuple[GraphModule, GraphModule]:
        """Return the forward and the backward of a joint graph."""
        if self.inference_only:
            raise NeedsAutograd
        if forward_needs_backward(joint, num_fwd_outputs):
            raise NeedsEager("its backward writes into a result, or into what its forward writes")
        joint, memory = self.passes(joint, num_fwd_outputs)
        forward, backward, self.memory = partition(
            joint,
            memory,
            num_fwd_outputs=num_fwd_outputs,
            budget=self.memory_budget,
            find_recomputable=self.find_recomputable,
        )
        self.partitioned = forward, backward
        return self.partitioned

    def forward(self) -> LazyGraph:
        """Return the forward or inference graph."""
        return self.graphs.get("inference") or self.graphs["forward"]

    def backward(self) -> LazyGraph:
        """Return the backward graph."""
        assert self.partitioned is not None
        return self._graph(self.partitioned[1], "backward")

    def _graph(self, gm: GraphModule, phase: str) -> LazyGraph:
        if phase not in self.graphs:
            assert self.memory is not None
            self.graphs[phase] = LazyGraph(AtenGraph(gm, phase, self.memory), self.compile)
        return self.graphs[phase]

    def _leaves_writes_to_autograd(self) -> bool:
        """Return whether an argument that requires grad is written after an inference graph.

        Autograd would record that write, while eager's is under `no_grad`.
        """
        meta = self.metadata
        return meta is None or any(
            meta.input_info[k].requires_grad and meta.input_info[k].mutates_data
            for k in meta.mutated_inp_runtime_indices
        )

    def _changes_layouts(self) -> bool:
        """Return whether an argument gets other sizes or strides in place, as by `t_`."""
        meta = self.metadata
        return meta is None or any(i.mutates_metadata for i in meta.input_info)

    def mutates_arguments(self) -> bool:
        """Return whether the program writes into an argument."""
        meta = self.metadata
        return meta is None or any(i.mutates_data or i.mutates_metadata for i in meta.input_info)

    def runtime_kind(
        self,
        arguments: Sequence[object],
        *,
        views: bool,
        module_tensors: Sequence[torch.Tensor] = (),
    ) -> RuntimeKind | None:
        """Return how the program runs, or None if it needs AOTAutograd's wrappers.

        It needs them if it mutates an argument that requires grad, has other arguments than the
        graph, switches gradients on itself, takes tensor subclasses, has ordered side effects, runs
        under autocast, or returns views that require grad (without `views`: any views).
        `module_tensors` are attributes of the program, which become its first arguments.
        """
        meta = self.metadata
        arguments = [*module_tensors, *arguments]
        if meta is None or autocast_on() or len(meta.input_info) != len(arguments):
            return None
        lifted = (self.context.params_flat if self.context is not None else None) or ()
        if module_tensors and list(map(id, lifted)) != list(map(id, module_tensors)):
            return None
        if meta.tokens or meta.num_backward_tokens:
            return None
        # the metadata may be of the graph, which takes the tensors inside subclasses
        if any(map(is_traceable_wrapper_subclass, arguments)):
            return None
        if not all(isinstance(m, PlainTensorMeta) for m in meta.subclass_inp_meta):
            return None
        returns_views = any(o.output_type not in NO_VIEW for o in meta.output_info)
        if "inference" in self.graphs:
            return None if returns_views and not views else inference_runtime(meta, arguments)
        if self.partitioned is None or returns_views or not torch.is_grad_enabled():
            return None
        return training_runtime(self.partitioned, meta)


def _view_returned_arguments(run: BoxedFunction) -> BoxedFunction:
    """Return a graph that returns views of arguments where it would return arguments.

    AOTAutograd changes the layouts of arguments in place afterwards, not those of their views.
    """

    def run_and_view(args: list[object], /) -> list[torch.Tensor]:
        arguments = tuple(args)
        return [
            r.view_as(r) if any(r is a for a in arguments) and isinstance(r, torch.Tensor) else r
            for r in run(args)
        ]

    return run_and_view


def _count_writes(gm: GraphModule, run: BoxedFunction) -> BoxedFunction:
    """Return a backward that counts its writes into arguments, for autograd's checks."""
    into = written_placeholders(gm.graph.nodes)
    written = [k for k, n in enumerate(gm.graph.find_nodes(op="placeholder")) if n in into]

    def run_and_count(args: list[object], /) -> list[torch.Tensor]:
        tensors = (args[k] for k in written)
        increment_version([t for t in tensors if isinstance(t, torch.Tensor)])
        return run(args)

    return run_and_count if written else run


NO_VIEW = (OutputType.non_alias, OutputType.unsafe_view_alias)


class NeedsAutograd(Exception):
    """A program cannot run as inference: AOTAutograd must record it or change its arguments."""


class NeedsEager(CaptureError):
    """AOTAutograd cannot express a program: PyTorch runs it."""


class NeedsInference(Exception):
    """An argument is written, which autograd must not record: an inference graph runs."""
