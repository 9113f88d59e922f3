"""One pure program, forward and backward: traced by AOTAutograd, run with little beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Union

import torch
from torch._C import _DisableAutocast
from torch._C import _is_any_autocast_enabled as autocast_on
from torch._functorch._aot_autograd.schemas import (
    AOTDispatchCompiler,
    OutputType,
    PlainTensorMeta,
)
from torch._functorch.aot_autograd import aot_function
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.traceback import preserve_node_meta
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import CheckpointFunction

from tofuse.capture.aot import Boxed, boxed, partition_joint
from tofuse.capture.claims import Claims, nobody
from tofuse.capture.closure import Function, Substitute, data_errors
from tofuse.capture.collector import collector_paused
from tofuse.capture.decompose import decompositions
from tofuse.capture.gradients import accept_any_layout
from tofuse.capture.rng import merge_seeds
from tofuse.capture.trees import flatten

Run = Callable[[list[object]], list[torch.Tensor]]
CompileGraph = Callable[[GraphModule, str], Callable[[list[object]], object]]
Results = Union[torch.Tensor, tuple[torch.Tensor, ...]]  # noqa: UP007  (evaluated at run time)


@dataclass(frozen=True)
class Program:
    """A callable on flat tensors, and what it gave for those it was compiled with."""

    run: Callable[..., object]
    first: object
    writes: bool  # into a tensor it was given


@collector_paused()
def compile_program(
    function: Function,
    tensors: Sequence[torch.Tensor],
    given: int,
    compile_graph: CompileGraph,
    memory_budget: float | None = None,
    claims: Claims = nobody,
) -> Program:
    """Compile `function(*tensors[:given])`; the other tensors are those it closes over."""
    tree = _Tree(function, tensors, given)
    parts = _Parts(compile_graph, memory_budget)
    traced = aot_function(
        tree.flat,
        fw_compiler=parts.compiler("forward"),
        bw_compiler=parts.compiler("backward"),
        inference_compiler=parts.compiler("inference"),
        partition_fn=parts.partition,
        decompositions=decompositions(claims=claims),
    )
    with data_errors(), tracing(TracingContext(FakeTensorMode())), preserve_node_meta():
        first = traced(*tensors)
    lean = parts.lean(any(t.requires_grad for t in tensors))
    if lean is None:
        return Program(lambda *xs: tree.rebuild(traced(*xs)), tree.rebuild(first), parts.writes())
    return Program(tree.around(lean), tree.rebuild(first), writes=False)


class _Tree:
    """The function on flat tensors to flat tensors, and how its results are put together."""

    def __init__(self, function: Function, tensors: Sequence[torch.Tensor], given: int) -> None:
        self.function, self.given = function, given
        self.closed = tensors[given:]
        self.again = {id(t): k for k, t in enumerate(tensors[:given])}
        self.leaves: list[object] = []
        self.spec = tree_flatten(None)[1]

    def flat(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """What is traced."""
        closed = list(zip(self.closed, tensors[self.given :], strict=True))
        mapping = {id(real): traced for real, traced in closed}
        mapping |= {key: tensors[k] for key, k in self.again.items()}
        real = {id(traced): real for real, traced in closed}
        with Substitute(mapping, real), _open_lstms(), _open_checkpoints():
            result = self.function(*tensors[: self.given])
        leaves, self.spec = flatten(result)
        self.leaves = [mapping.get(id(x), x) for x in leaves]
        found = [x for x in self.leaves if isinstance(x, torch.Tensor)]
        self.leaves = [_TENSOR if isinstance(x, torch.Tensor) else x for x in self.leaves]
        return found

    def rebuild(self, tensors: object) -> object:
        """The function's own result from its flat tensors."""
        assert isinstance(tensors, (list, tuple))
        rest = iter(tensors)
        return tree_unflatten([next(rest) if x is _TENSOR else x for x in self.leaves], self.spec)

    def around(self, lean: Callable[..., Results]) -> Callable[..., object]:
        """`lean` with its results put together; itself where that is one tensor."""
        if self.spec.is_leaf() and self.leaves == [_TENSOR]:
            return lean
        count = self.leaves.count(_TENSOR)
        if count == 1:
            return lambda *xs: self.rebuild([lean(*xs)])
        if self.spec.type is tuple and count == len(self.leaves) == len(self.spec.children()):
            return lean
        return lambda *xs: self.rebuild(lean(*xs))


@contextmanager
def _open_lstms() -> Iterator[None]:
    """Where gradients are wanted, LSTMs are taken apart; as a call of mkldnn's, as which torch
    captures them where only weights require grad, they keep nothing for the backward."""
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled and not torch.is_grad_enabled())
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


@contextmanager
def _open_checkpoints() -> Iterator[None]:
    """Reentrant checkpoints run what they hold: how they compute it again cannot be traced, and
    what is saved is the partition's decision."""

    def apply(run: Callable[..., object], preserve_rng_state: bool, *args: object) -> object:
        return run(*args)

    CheckpointFunction.apply = apply  # type: ignore[method-assign]  # taken back below
    try:
        yield
    finally:
        del CheckpointFunction.apply  # which uncovers the inherited one


_TENSOR = object()  # the place of a tensor among results


@dataclass
class _Parts:
    """What AOTAutograd handed over: the graphs, and what it knows of results and arguments."""

    compile_graph: CompileGraph
    memory_budget: float | None = None
    runs: dict[str, Run] = field(default_factory=dict)
    context: TracingContext | None = None
    graphs: tuple[GraphModule, GraphModule] | None = None

    def compiler(self, phase: str) -> AOTDispatchCompiler:
        def compile_phase(
            gm: GraphModule, example_inputs: Sequence[torch.Tensor | int | torch.SymInt | None]
        ) -> Boxed:
            self.context = TracingContext.try_get() or self.context
            if phase == "backward":
                return boxed(lambda args: self.backward()(args))
            if phase == "forward":
                accept_any_layout()
            module = merge_seeds(gm) if phase == "inference" else gm
            self.runs[phase] = self._compile(module, phase)
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
        self.graphs = partition_joint(
            joint,
            joint_inputs,
            num_fwd_outputs=num_fwd_outputs,
            static_lifetime_input_indices=static_lifetime_input_indices,
            budget=self.memory_budget,
        )
        return self.graphs

    def backward(self) -> Run:
        """The backward, compiled when it is first needed."""
        if "backward" not in self.runs:
            assert self.graphs is not None
            self.runs["backward"] = self._compile(self.graphs[1], "backward")
        return self.runs["backward"]

    @collector_paused()
    def _compile(self, gm: GraphModule, phase: str) -> Run:
        return self.compile_graph(gm, phase)  # type: ignore[return-value]  # tensors, no sizes

    def writes(self) -> bool:
        """Whether an argument is changed."""
        meta = None if self.context is None else self.context.fw_metadata
        return meta is None or any(i.mutates_data or i.mutates_metadata for i in meta.input_info)

    def lean(self, requires_grad: bool) -> Callable[..., Results] | None:
        """The program without AOTAutograd's wrappers; None where it needs them.

        It does where an argument is changed, where a result that requires grad is a view, for
        tensor subclasses, where calls have effects in an order, and under autocast.
        """
        meta = None if self.context is None else self.context.fw_metadata
        if meta is None or self.writes() or autocast_on():
            return None
        if meta.tokens or meta.num_backward_tokens:
            return None
        if not all(isinstance(m, PlainTensorMeta) for m in meta.subclass_inp_meta):
            return None
        if "inference" in self.runs:
            if any(o.requires_grad for o in meta.output_info):  # views of arguments
                return None
            views = [o.output_type is OutputType.alias_of_input for o in meta.output_info]
            return _inference(self.runs["inference"], views, requires_grad)
        plain = (OutputType.non_alias, OutputType.unsafe_view_alias)
        if self.graphs is None or any(o.output_type not in plain for o in meta.output_info):
            return None
        wanted = [o.requires_grad for o in meta.output_info]
        return _training(self, wanted)


def _inference(run: Run, views: Sequence[bool], requires_grad: bool) -> Callable[..., Results]:
    """Without a backward; operators of PyTorch must not record one. `views` are of arguments."""
    if len(views) != 1 or views[0]:

        def several(*tensors: torch.Tensor) -> Results:
            with torch.no_grad():
                made = run([*tensors])
                # a plan gives an argument itself for a view that is all of it
                found = tuple(t.detach() if v else t for t, v in zip(made, views, strict=False))
            return found[0] if len(views) == 1 else found

        return several

    def single(*tensors: torch.Tensor) -> Results:
        return run([*tensors])[0]

    def guarded(*tensors: torch.Tensor) -> Results:
        with torch.no_grad():
            return run([*tensors])[0]

    return guarded if requires_grad else single


class Context(torch.autograd.function.FunctionCtx):
    """What autograd hands to forward and backward."""

    saved_tensors: tuple[torch.Tensor, ...]

    def maybe_clear_saved_tensors(self) -> None: ...


def _training(parts: _Parts, wanted: Sequence[bool]) -> Callable[..., Results] | None:
    """An autograd.Function on the two compiled graphs."""
    assert parts.graphs is not None
    count = len(wanted)
    saved = _saved(parts.graphs, count)
    if saved is None:
        return None
    order, tangents = saved
    forward_run = parts.runs["forward"]
    dull = [k for k, grad in enumerate(wanted) if not grad]
    differentiable = [k for k, grad in enumerate(wanted) if grad]
    everything = order == list(range(count, count + len(order)))
    direct = not dull and tangents == list(range(len(differentiable)))

    def run_backward(ctx: Context, *grads: torch.Tensor) -> tuple[object, ...]:
        used = grads if direct else [grads[differentiable[k]] for k in tangents]
        arguments = [*ctx.saved_tensors, *used]
        ctx.maybe_clear_saved_tensors()  # the plan releases each after its last use
        if autocast_on():
            with _DisableAutocast():
                return tuple(parts.backward()(arguments))
        return tuple(parts.backward()(arguments))

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Context, *tensors: torch.Tensor) -> Results:
            made = forward_run([*tensors])
            ctx.save_for_backward(*(made[count:] if everything else [made[k] for k in order]))
            if dull:
                ctx.mark_non_differentiable(*[made[k] for k in dull])
            return made[0] if count == 1 else tuple(made[:count])

        @staticmethod
        def backward(ctx: Context, *grads: torch.Tensor) -> tuple[object, ...]:
            if not torch.is_grad_enabled():
                return run_backward(ctx, *grads)
            with torch.no_grad():
                return _final(run_backward(ctx, *grads))

    # Function.apply, without its checks for functorch, which the caller has made
    apply: Callable[..., Results] = super(torch.autograd.Function, Fused).apply
    return apply


def _final(grads: tuple[object, ...]) -> tuple[object, ...]:
    """Gradients that raise when they are differentiated themselves."""
    delayed = torch._C._functions.DelayedError(TWICE, 1)  # one for each: it returns no tuple
    final = [
        delayed(g.detach().requires_grad_()) if isinstance(g, torch.Tensor) else g for g in grads
    ]
    return tuple(final)


TWICE = b"a program compiled by tofuse cannot be differentiated twice; use eager for that"


def _saved(
    graphs: tuple[GraphModule, GraphModule], count: int
) -> tuple[list[int], list[int]] | None:
    """Which results of the forward the backward takes, then which tangents; None if others."""
    forward, backward = graphs
    output = next(n for n in forward.graph.nodes if n.op == "output")
    names = [getattr(n, "name", None) for n in output.args[0]]
    saved: list[int] = []
    tangents: list[int] = []
    for node in backward.graph.nodes:
        if node.op != "placeholder":
            continue
        target = str(node.target)
        if target.startswith("tangents_"):
            tangents.append(int(target.removeprefix("tangents_")) - 1)
        elif target in names[count:] and not tangents and _is_tensor(node):
            saved.append(count + names[count:].index(target))
        else:
            return None
    return saved, tangents


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
