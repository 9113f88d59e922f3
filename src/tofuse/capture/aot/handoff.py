"""A program without AOTAutograd's wrappers: an autograd function on its two compiled graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Union

import torch
from torch._C import _DisableAutocast
from torch._C import _is_any_autocast_enabled as autocast_on
from torch._functorch._aot_autograd.schemas import (
    AOTDispatchCompiler,
    OutputType,
    PlainTensorMeta,
    ViewAndMutationMeta,
)
from torch._guards import TracingContext
from torch.autograd.graph import increment_version
from torch.fx import GraphModule, Node

from tofuse.capture.aot.double_backward import (
    Eager,
    SavedArgument,
    again,
    arguments_of,
    final,
    keep,
    leaves,
)
from tofuse.capture.aot.gc_pause import collector_paused
from tofuse.capture.aot.tangent_layouts import accept_any_layout, allow_retained_graphs
from tofuse.capture.decomp.rng import merge_seeds
from tofuse.capture.fx.eager_memory import attach, memory_of
from tofuse.capture.joint.complex.pairs import as_pairs
from tofuse.capture.joint.partition import partition
from tofuse.capture.lower.convert import NOTES
from tofuse.capture.lower.executor_claims import Claims, nobody

BoxedFunction = Callable[[list[object]], list[torch.Tensor]]
CompileGraph = Callable[[GraphModule, str], Callable[[list[object]], object]]
Results = Union[torch.Tensor, Sequence[torch.Tensor]]  # noqa: UP007  (evaluated at run time)


class Boxed(Protocol):
    """A callable that takes its arguments in one list, which it may empty."""

    _boxed_call: bool

    def __call__(self, args: list[object], /) -> object: ...


def boxed(run: Callable[[list[object]], object]) -> Boxed:
    """Tell AOTAutograd that this callable takes one list."""

    def call(args: list[object], /) -> object:
        return run(args)

    call._boxed_call = True  # type: ignore[attr-defined]  # functorch's convention
    return call  # type: ignore[return-value]  # now it has the attribute


@dataclass
class Parts:
    """What AOTAutograd handed over: the graphs, and what it knows of results and arguments."""

    compile_graph: CompileGraph
    memory_budget: float | None = None
    notes: tuple[str, ...] = ()  # for the report
    claims: Claims = nobody
    finished: Callable[[list[BoxedFunction]], None] = lambda runs: (
        None
    )  # told of all that was compiled
    runs: dict[str, BoxedFunction] = field(default_factory=dict)
    context: TracingContext | None = None
    graphs: tuple[GraphModule, GraphModule] | None = None

    def compiler(self, phase: str) -> AOTDispatchCompiler:
        """What AOTAutograd calls for the graph of a phase."""

        def compile_phase(
            gm: GraphModule, example_inputs: Sequence[torch.Tensor | int | torch.SymInt | None]
        ) -> Boxed:
            if phase != "backward":
                self.context = TracingContext.try_get()
                gm = self._prepared(gm) if phase == "inference" else gm
                gm.meta[NOTES] = self.notes
            if phase == "forward":
                accept_any_layout()
                allow_retained_graphs()
            if phase not in self.runs:
                self.runs[phase] = self._compile(gm, phase)
            return boxed(self.runs[phase])

        return compile_phase

    def partition(
        self,
        joint: GraphModule,
        joint_inputs: Sequence[object],
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
    ) -> tuple[GraphModule, GraphModule]:
        """The forward and the backward of a joint graph."""
        self.graphs = partition(
            self._prepared(joint, num_fwd_outputs),
            joint_inputs,
            num_fwd_outputs=num_fwd_outputs,
            static_lifetime_input_indices=static_lifetime_input_indices,
            budget=self.memory_budget,
        )
        return self.graphs

    def _prepared(self, gm: GraphModule, num_fwd_outputs: int | None = None) -> GraphModule:
        """On one random seed, and complex numbers as pairs, which are nothing that eager holds."""
        gm = merge_seeds(gm)
        attach(gm, memory_of(gm, num_fwd_outputs))
        return as_pairs(gm, self.claims)

    def forward(self) -> BoxedFunction:
        """What was compiled of the program but for the backward."""
        return self.runs["inference"] if "inference" in self.runs else self.runs["forward"]

    def backward(self) -> BoxedFunction:
        """The backward, compiled when it is first needed."""
        graphs = self.graphs  # before the question: another thread may be here, too
        if "backward" not in self.runs:
            assert graphs is not None
            self.runs["backward"] = self._compile(graphs[1], "backward")
            self.finished([self.runs["forward"], self.runs["backward"]])
            self.graphs = self.context = None  # of which nobody asks any more
        return self.runs["backward"]

    @collector_paused()
    def _compile(self, gm: GraphModule, phase: str) -> BoxedFunction:
        return self.compile_graph(gm, phase)  # type: ignore[return-value]  # tensors, no sizes

    def _holds(self, held: Sequence[torch.Tensor]) -> bool:
        """Whether AOTAutograd knows of the same tensors, in this order."""
        known = (self.context.params_flat if self.context is not None else None) or ()
        return len(known) == len(held) and all(a is b for a, b in zip(known, held, strict=True))

    def writes(self) -> bool:
        """Whether an argument is changed."""
        meta = None if self.context is None else self.context.fw_metadata
        return meta is None or any(i.mutates_data or i.mutates_metadata for i in meta.input_info)

    def form(
        self, arguments: Sequence[object], *, views: bool, held: Sequence[torch.Tensor] = ()
    ) -> Form | None:
        """How the program runs without AOTAutograd's wrappers; None where it needs them.

        It does where an argument that wants a gradient is changed, where the graph's arguments are
        others, where a result that requires grad is a view (without `views`, where any is), where
        the program itself switches gradients on, for tensor subclasses, where calls have effects in
        an order, and under autocast. `held` are the program's own tensors, its first arguments.
        """
        meta = None if self.context is None else self.context.fw_metadata
        arguments = [*held, *arguments]
        if meta is None or autocast_on() or len(meta.input_info) != len(arguments):
            return None
        if held and not self._holds(held):
            return None
        if meta.tokens or meta.num_backward_tokens:
            return None
        if not all(isinstance(m, PlainTensorMeta) for m in meta.subclass_inp_meta):
            return None
        if "inference" in self.runs:
            if meta.mutated_inp_runtime_indices or any(i.mutates_metadata for i in meta.input_info):
                return None  # what is written is not all in the graph
            if any(o.requires_grad for o in meta.output_info):
                return None  # these are views of arguments
            if any(o.output_type not in PLAIN for o in meta.output_info) and not views:
                return None
            wanted = any(isinstance(t, torch.Tensor) and t.requires_grad for t in arguments)
            of_argument = (o.output_type is OutputType.alias_of_input for o in meta.output_info)
            written = tuple(meta.mutated_graph_handled_indices_seen_by_autograd)
            return Inference(tuple(of_argument), wanted, written)
        if self.graphs is None or any(o.output_type not in PLAIN for o in meta.output_info):
            return None
        if not torch.is_grad_enabled():
            return None
        return _training(self.graphs, meta)


PLAIN = (OutputType.non_alias, OutputType.unsafe_view_alias)


@dataclass(frozen=True)
class Inference:
    """A program without a backward. `views`: which results are of arguments; `guarded`: arguments
    require grad, so that operators of PyTorch would record a backward; `written`: arguments whose
    writes autograd counts."""

    views: tuple[bool, ...]
    guarded: bool
    written: tuple[int, ...]

    def program(
        self, forward: BoxedFunction, backward: object = None, eager: object = None
    ) -> Callable[..., Results]:
        """The program: its results in a list."""

        def plain(*tensors: torch.Tensor) -> Results:
            return forward([*tensors])

        def guarded(*tensors: torch.Tensor) -> Results:
            with torch.no_grad():
                return forward([*tensors])

        def viewing(*tensors: torch.Tensor) -> Results:
            with torch.no_grad():
                made = forward([*tensors])
                # a plan gives an argument itself for a view that is all of it
                return [t.detach() if v else t for t, v in zip(made, self.views, strict=False)]

        def writing(*tensors: torch.Tensor) -> Results:
            with torch.no_grad():
                increment_version([tensors[k] for k in self.written])
                return forward([*tensors])

        if self.written:
            return writing
        return viewing if any(self.views) else guarded if self.guarded else plain


class Context(torch.autograd.function.FunctionCtx):
    """What autograd hands to forward and backward."""

    saved_tensors: tuple[torch.Tensor, ...]
    sizes: Sequence[object]
    given: Sequence[SavedArgument]

    def maybe_clear_saved_tensors(self) -> None: ...


@dataclass(frozen=True)
class Training:
    """A program with a backward: an autograd.Function on two graphs.

    The forward's results are the new values of the arguments `written`, then the program's, of
    which those `wanted` have a gradient, then others. The backward takes the numbers and tensors
    at the places `sizes` and `saved`, then the gradients `tangents` of those that have one.
    `needed` says which arguments want a gradient, `given` are places of those that are none of a
    module's parameters; a program that is `pure` gives the same for the same arguments.
    """

    written: tuple[int, ...]
    wanted: tuple[bool, ...]
    sizes: tuple[int, ...]
    saved: tuple[int, ...]
    tangents: tuple[int, ...]
    needed: tuple[bool, ...]
    given: tuple[int, ...]
    pure: bool

    def program(
        self,
        forward: BoxedFunction,
        backward: Callable[[], BoxedFunction],
        eager: Eager | None = None,
    ) -> Callable[..., Results]:
        """The program: its results in a tuple. `eager` is what PyTorch runs in its place where
        gradients are differentiated."""
        written, sizes, order, given = self.written, self.sizes, self.saved, self.given
        first, last = len(written), len(written) + len(self.wanted)
        differentiable = [k for k, grad in enumerate(self.wanted) if grad]
        dull = [first + k for k, grad in enumerate(self.wanted) if not grad]
        end = last + len(order)
        everything = order == tuple(range(last, end))
        direct = not dull and self.tangents == tuple(range(len(differentiable)))

        def run_backward(ctx: Context, *grads: torch.Tensor) -> tuple[object, ...]:
            used = grads if direct else [grads[differentiable[k]] for k in self.tangents]
            arguments = [*(ctx.sizes if sizes else ()), *ctx.saved_tensors, *used]
            ctx.maybe_clear_saved_tensors()  # the plan releases each after its last use
            if autocast_on():
                with _DisableAutocast():
                    return tuple(backward()(arguments))
            return tuple(backward()(arguments))

        class Fused(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Context, *tensors: torch.Tensor) -> Results:
                made = forward([*tensors])
                ctx.save_for_backward(*(made[last:end] if everything else [made[k] for k in order]))
                for new, k in zip(made, written, strict=False):  # autograd sees it if that was kept
                    tensors[k].copy_(new)
                if given:
                    ctx.given = [keep(tensors[k]) for k in given]
                if sizes:
                    ctx.sizes = [made[k] for k in sizes]
                if dull:
                    others = [t for k in dull if isinstance(t := made[k], torch.Tensor)]
                    ctx.mark_non_differentiable(*others)  # but sizes
                return tuple(made[first:last])

            @staticmethod
            @torch._dynamo.disable  # a call of Dynamo's may run it in its turn
            def backward(ctx: Context, *grads: torch.Tensor) -> tuple[object, ...]:
                if not torch.is_grad_enabled():
                    return run_backward(ctx, *grads)
                return self.twice(ctx, grads, run_backward, eager)

        # Function.apply, without its checks for functorch, which the caller has made
        apply: Callable[..., Results] = super(torch.autograd.Function, Fused).apply
        return apply

    def twice(
        self,
        ctx: Context,
        grads: Sequence[torch.Tensor],
        run: Callable[..., tuple[object, ...]],
        eager: Eager | None,
    ) -> tuple[object, ...]:
        """Gradients that may be differentiated, or raise where they are."""
        saved = ctx.saved_tensors  # which raises where one was written since
        kept = dict(zip(self.given, ctx.given if self.given else (), strict=True))
        arguments = arguments_of(ctx, len(self.needed), kept)
        if self.pure and eager is not None and all(a is not None for a in arguments):
            return again(eager, arguments, self.wanted, grads)
        with torch.no_grad():
            made = run(ctx, *grads)
        return final(made, leaves([ctx]), [*grads, *saved, *arguments])


Form = Inference | Training


def _training(
    graphs: tuple[GraphModule, GraphModule], meta: ViewAndMutationMeta
) -> Training | None:
    """None where the backward takes what is written, or where an argument that wants a gradient is
    written or gets none, which AOTAutograd hides from autograd."""
    forward, backward = graphs
    needed = [i.requires_grad for i in meta.input_info]
    written = [k for k, i in enumerate(meta.input_info) if i.mutates_data or i.mutates_metadata]
    if written != list(meta.mutated_inp_runtime_indices) or not _gets(backward, needed):
        return None
    if any(needed[k] or meta.input_info[k].mutates_metadata for k in written):
        return None
    names = [getattr(n, "name", None) for n in forward.graph.find_nodes(op="output")[0].args[0]]
    places = forward.graph.find_nodes(op="placeholder")
    last, changed = len(written) + len(meta.output_info), {places[k].name for k in written}
    sizes: list[int] = []
    saved: list[int] = []
    tangents: list[int] = []
    for node in backward.graph.find_nodes(op="placeholder"):
        target = str(node.target)
        if target.startswith("tangents_"):
            tangents.append(int(target.removeprefix("tangents_")) - 1)
        elif target not in names[last:] or target in changed or tangents:
            return None
        elif isinstance(node.meta.get("val"), torch.Tensor):
            saved.append(last + names[last:].index(target))
        elif not saved:
            sizes.append(last + names[last:].index(target))
        else:
            return None
    wanted = tuple(o.requires_grad for o in meta.output_info)
    own = {k for k in meta.static_input_indices if needed[k]}  # a module's parameters
    given = tuple(k for k in range(len(needed)) if k not in own)
    return Training(
        tuple(written),
        wanted,
        tuple(sizes),
        tuple(saved),
        tuple(tangents),
        tuple(needed),
        given,
        not written and not any(map(_changes, forward.graph.nodes)),
    )


def _changes(node: Node) -> bool:
    """Whether a call may give something else the next time, or writes."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags


def _gets(backward: GraphModule, needed: Sequence[bool]) -> bool:
    """Whether every argument that wants a gradient has one."""
    found = backward.graph.find_nodes(op="output")[0].args[0]
    if not isinstance(found, (list, tuple)) or len(found) != len(needed):
        return False
    return all(g is not None for g, need in zip(found, needed, strict=True) if need)
