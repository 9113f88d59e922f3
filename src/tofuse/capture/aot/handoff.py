"""What AOTAutograd hands over for one program: its graphs and its metadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule

from tofuse.capture.aot.boxed import BoxedFunction
from tofuse.capture.aot.gc_pause import pause_gc
from tofuse.capture.aot.runtime_inference import InferenceRuntime, inference_runtime
from tofuse.capture.aot.runtime_training import TrainingRuntime, training_runtime
from tofuse.capture.aot.tangent_layouts import accept_any_tangent_strides, allow_retain_graph
from tofuse.capture.fx.capture_passes import CapturePasses
from tofuse.capture.joint.partition import partition
from tofuse.capture.lower.convert import NOTES_KEY
from tofuse.torch_internals.autograd_compiler import (
    AOTDispatchCompiler,
    MarkedBoxed,
    OutputType,
    PlainTensorMeta,
    TracingContext,
    mark_boxed,
)
from tofuse.torch_internals.dispatch import autocast_on

CompileGraph = Callable[[GraphModule, str], Callable[[list[object]], object]]
RuntimeKind = InferenceRuntime | TrainingRuntime


@dataclass
class AOTArtifacts:
    """The graphs and the metadata that AOTAutograd hands over, and the compiled graphs by phase."""

    compile_graph: CompileGraph
    passes: CapturePasses
    memory_budget: float | None = None
    notes: tuple[str, ...] = ()  # for the report
    on_compiled: Callable[[list[BoxedFunction]], None] = lambda functions: None  # with all graphs
    compiled: dict[str, BoxedFunction] = field(default_factory=dict)
    context: TracingContext | None = None
    graphs: tuple[GraphModule, GraphModule] | None = None  # forward and backward

    def compiler(self, phase: str) -> AOTDispatchCompiler:
        """Return the function that AOTAutograd calls with the graph of a phase."""

        def compile_phase(
            gm: GraphModule, example_inputs: Sequence[torch.Tensor | int | torch.SymInt | None]
        ) -> MarkedBoxed:
            if phase != "backward":
                self.context = TracingContext.try_get()
                if phase == "inference":
                    for fx_pass in self.passes.traced(None):
                        gm = fx_pass(gm)
                gm.meta[NOTES_KEY] = self.notes
            if phase == "forward":
                accept_any_tangent_strides()
                allow_retain_graph()
            if phase not in self.compiled:
                self.compiled[phase] = self._compile(gm, phase)
            return mark_boxed(self.compiled[phase])

        return compile_phase

    def partition(
        self,
        joint: GraphModule,
        joint_inputs: Sequence[object],
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
    ) -> tuple[GraphModule, GraphModule]:
        """Return the forward and the backward of a joint graph."""
        for fx_pass in (*self.passes.traced(num_fwd_outputs), *self.passes.joint):
            joint = fx_pass(joint)
        self.graphs = partition(
            joint,
            joint_inputs,
            num_fwd_outputs=num_fwd_outputs,
            static_lifetime_input_indices=static_lifetime_input_indices,
            budget=self.memory_budget,
        )
        return self.graphs

    def forward(self) -> BoxedFunction:
        """Return the compiled forward or inference graph."""
        if "inference" in self.compiled:
            return self.compiled["inference"]
        return self.compiled["forward"]

    def backward(self) -> BoxedFunction:
        """Return the backward, which the first call compiles."""
        graphs = self.graphs  # read before the check: another thread may reset it
        if "backward" not in self.compiled:
            assert graphs is not None
            self.compiled["backward"] = self._compile(graphs[1], "backward")
            self.on_compiled([self.compiled["forward"], self.compiled["backward"]])
            self.graphs = self.context = None  # no longer needed
        return self.compiled["backward"]

    @pause_gc()
    def _compile(self, gm: GraphModule, phase: str) -> BoxedFunction:
        return self.compile_graph(gm, phase)  # type: ignore[return-value]  # tensors, no sizes

    def _lifts_same_tensors(self, module_tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether AOTAutograd made exactly these tensors arguments, in this order."""
        lifted = (self.context.params_flat if self.context is not None else None) or ()
        same_count = len(lifted) == len(module_tensors)
        return same_count and all(a is b for a, b in zip(lifted, module_tensors, strict=True))

    def mutates_arguments(self) -> bool:
        """Return whether the program writes into an argument."""
        meta = None if self.context is None else self.context.fw_metadata
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
        meta = None if self.context is None else self.context.fw_metadata
        arguments = [*module_tensors, *arguments]
        if meta is None or autocast_on() or len(meta.input_info) != len(arguments):
            return None
        if module_tensors and not self._lifts_same_tensors(module_tensors):
            return None
        if meta.tokens or meta.num_backward_tokens:
            return None
        if not all(isinstance(m, PlainTensorMeta) for m in meta.subclass_inp_meta):
            return None
        returns_views = any(o.output_type not in NO_VIEW for o in meta.output_info)
        if "inference" in self.compiled:
            return None if returns_views and not views else inference_runtime(meta, arguments)
        if self.graphs is None or returns_views or not torch.is_grad_enabled():
            return None
        return training_runtime(self.graphs, meta)


NO_VIEW = (OutputType.non_alias, OutputType.unsafe_view_alias)
