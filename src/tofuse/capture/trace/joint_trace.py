"""One pure program, forward and backward: traced by AOTAutograd, run with little beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch._functorch.aot_autograd import aot_function
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.traceback import preserve_node_meta
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import CheckpointFunction

from tofuse.capture.aot.gc_pause import collector_paused
from tofuse.capture.aot.handoff import (
    CompileGraph,
    Parts,
    Results,
    Training,
)
from tofuse.capture.decomp.decompose import decompositions
from tofuse.capture.lower.executor_claims import Claims, nobody
from tofuse.capture.trace.free_variables import Function, Substitute, data_errors
from tofuse.capture.trace.pytree import flatten
from tofuse.errors import CaptureError


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
    parts = Parts(compile_graph, memory_budget, claims=claims)
    traced = aot_function(
        tree.flat,
        fw_compiler=parts.compiler("forward"),
        bw_compiler=parts.compiler("backward"),
        inference_compiler=parts.compiler("inference"),
        partition_fn=parts.partition,
        decompositions=decompositions(claims=claims),
    )
    with data_errors(), tracing(TracingContext(FakeTensorMode())), preserve_node_meta():
        try:
            first = traced(*tensors)
        except AssertionError as error:  # of AOTAutograd's: arguments that share memory, say
            why = (str(error).strip() or "no reason is given").splitlines()[0]
            raise CaptureError(
                f"capture='trace' cannot follow a program that AOTAutograd refuses: {why}; "
                "compile it without capture='trace'"
            ) from error
    form = parts.form(tensors, views=True)
    whole = tree.rebuild(first)
    if form is None:
        return Program(lambda *xs: tree.rebuild(traced(*xs)), whole, parts.writes())
    tree.closed = ()  # which the module may replace
    run = tree.around(form.program(parts.forward(), parts.backward, tree.eager))
    hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    if isinstance(form, Training) and form.pure and not hooked:
        whole = run(*tensors)  # what AOTAutograd gave has no second derivative
    return Program(run, whole, parts.writes())


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

    def eager(self, arguments: Sequence[object], aliases: Sequence[object]) -> list[torch.Tensor]:
        """What it gives of aliases, in the place of the arguments and of what it closes over."""
        pairs = zip(arguments, aliases, strict=True)
        mapping = {id(t): a for t, a in pairs if a is not t and isinstance(a, torch.Tensor)}
        with Substitute(mapping, {}):
            result = self.function(*aliases[: self.given])
        found = [mapping.get(id(x), x) for x in flatten(result)[0]]
        return [x for x in found if isinstance(x, torch.Tensor)]

    def rebuild(self, tensors: object) -> object:
        """The function's own result from its flat tensors."""
        assert isinstance(tensors, (list, tuple))
        rest = iter(tensors)
        return tree_unflatten([next(rest) if x is _TENSOR else x for x in self.leaves], self.spec)

    def around(self, lean: Callable[..., Results]) -> Callable[..., object]:
        """`lean` with its results put together."""
        if self.spec.is_leaf() and self.leaves == [_TENSOR]:
            return lambda *xs: lean(*xs)[0]
        count = self.leaves.count(_TENSOR)
        if self.spec.type is tuple and count == len(self.leaves) == len(self.spec.children()):
            return lambda *xs: tuple(lean(*xs))
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
