"""Programs as Dynamo hands them over: what AOTAutograd would get wrong is put right or refused."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.fx import GraphModule, Node
from torch.fx.node import Target
from torch.utils._pytree import tree_leaves

from tofuse.capture.fx.sizes import at_first_call

Run = Callable[..., object]


def pass_through_dropout(gm: GraphModule) -> None:
    """Dropout that drops nothing gives its input itself in eager; AOTAutograd would copy it."""
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target not in DROPOUTS or not node.args:
            continue
        given = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
        training = given.get("training", node.target not in OFF_BY_DEFAULT)
        if (training is False or given.get("p") == 0) and isinstance(given["input"], Node):
            node.replace_all_uses_with(given["input"])
            gm.graph.erase_node(node)
            gm.recompile()


def refusal(gm: GraphModule, inputs: Sequence[object]) -> str | None:
    """Why PyTorch has to run this program as it is; None where it can be compiled.

    Dynamo's stand-ins for tensors in oneDNN's own layouts look like others, and have no memory.
    A write into a tensor that overlaps itself has an effect that depends on the order of the
    elements, or is an error; a functional program cannot tell it.
    """
    if any(isinstance(t, torch.Tensor) and t.is_mkldnn for t in inputs):
        return "an argument lies in a layout of oneDNN's own"
    arguments = [
        t for n in gm.graph.nodes if n.op == "placeholder" and (t := tensor_of(n)) is not None
    ]
    overlapping = {memory(t) for t in arguments if overlaps_itself(t)}
    for node in gm.graph.nodes:
        if any(overlaps_itself(t) or memory(t) in overlapping for t in written(node)):
            return "it writes into a tensor that overlaps itself"
        if any(_through_windows(x) for x in _written_nodes(node)):
            return "it writes into windows of a tensor"
        if overlapping and _holds_program(node):
            return "it may write into a tensor that overlaps itself"
    changed = _written_memory(gm)
    spans = [(*_span(t, memory(t) << 64), memory(t) in changed) for t in arguments]
    return "it writes into an argument that overlaps another" if collide(spans) else None


def guard_overlaps(gm: GraphModule, compiled: Run) -> Run:
    """`compiled`, but `gm` where an argument it writes into overlaps another.

    Dynamo's guards do not look at the memory of arguments.
    """
    values = [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
    tensors = [k for k, v in enumerate(values) if isinstance(v, torch.Tensor)]
    places = _written_memory(gm)
    changed = {k for k in tensors if (t := _plain(values[k])) is not None and memory(t) in places}
    if not changed or len(tensors) < 2 or any(_plain(values[k]) is None for k in tensors):
        return compiled
    fixed = not any(isinstance(v, torch.SymInt) for v in values)
    known: list[int] = []

    def run(*args: torch.Tensor) -> object:
        nonlocal known
        places = [args[k].data_ptr() for k in tensors]
        if places != known or not fixed:
            found = zip(tensors, places, strict=True)
            if collide([(*_span(args[k], at), k in changed) for k, at in found]):
                return gm.forward(*args)
            known = places
        return compiled(*args)

    return run


def watched() -> bool:
    """Whether something sees what PyTorch's operators do, and would see them being captured."""
    modes = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    return bool(modes) or forward_ad._current_level >= 0 or transforms_active()


@dataclass
class Further:
    """Whether derivatives of a program's gradients were asked for, which eager computes."""

    asked: bool = False


def leave_derivatives(gm: GraphModule, compiled: Run, further: Further) -> Run:
    """`compiled`, but `gm` where forward-mode derivatives are taken, for kernels have none, among
    functorch's transforms, which see what PyTorch's operators do, and once its gradients have been
    differentiated themselves, for whoever does that does it in each step."""

    def run(*args: object) -> object:
        if forward_ad._current_level >= 0 or further.asked or transforms_active():
            return gm.forward(*args)
        return compiled(*args)

    return run


def collide(spans: Sequence[tuple[int, int, bool]]) -> bool:
    """Whether two spans (first byte, byte after the last, written) meet, one of them written."""
    end = end_of_written = 0
    for first, after, written in sorted(spans):
        if first == after:
            continue
        if first < (end if written else end_of_written):
            return True
        end = max(end, after)
        end_of_written = max(end_of_written, after) if written else end_of_written
    return False


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two indices may lie in one place."""
    pairs = [
        (at_first_call(s, 1), at_first_call(n, 1))
        for s, n in zip(tensor.stride(), tensor.shape, strict=True)
    ]
    reach = 0
    for stride, extent in sorted(pairs):
        if extent == 0:
            return False
        if extent > 1:
            if stride <= reach:
                return True
            reach += stride * (extent - 1)
    return False


def tensor_of(node: Node) -> torch.Tensor | None:
    """What stands for a node's tensor, if that lies in memory by strides."""
    return _plain(node.meta.get("example_value"))


def _plain(value: object) -> torch.Tensor | None:
    """The value, if it stands for a tensor that lies in memory by strides."""
    if not isinstance(value, FakeTensor):  # but for instance a subclass that holds some
        return None
    return value if value.layout is torch.strided and value.device.type != "meta" else None


def _span(tensor: torch.Tensor, base: int) -> tuple[int, int]:
    """The bytes it lies in, from `base` or, where it is fake, from its storage's place on."""
    extents = [at_first_call(n, 1) for n in tensor.shape]
    if isinstance(tensor, FakeTensor):
        base += at_first_call(tensor.storage_offset(), 1) * tensor.itemsize
    if 0 in extents:
        return base, base
    reach = sum(
        (n - 1) * at_first_call(s, 1) for n, s in zip(extents, tensor.stride(), strict=True)
    )
    return base, base + (reach + 1) * tensor.itemsize


def _written_memory(gm: GraphModule) -> set[int]:
    return {memory(t) for node in gm.graph.nodes for t in written(node)}


def memory(tensor: torch.Tensor) -> int:
    """The same number for tensors that share memory."""
    return tensor.untyped_storage()._cdata


def nbytes(argument: object) -> int:
    """How many bytes a node's tensor has; none where the argument is no such node."""
    value = argument.meta.get("example_value") if isinstance(argument, Node) else None
    if not isinstance(value, torch.Tensor):
        return 0
    return math.prod(map(at_first_call, value.shape)) * value.itemsize


def only_views(gm: GraphModule) -> bool:
    """Whether all that a program of Dynamo's makes are views of its arguments, and it writes into
    none: PyTorch gives them with nothing in between."""
    given = [t for n in gm.graph.find_nodes(op="placeholder") if (t := tensor_of(n)) is not None]
    places = {memory(t) for t in given}
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        if node.op not in ("call_function", "call_method") or _written_nodes(node):
            return False
        made = tree_leaves(node.meta.get("example_value"))
        tensors = [_plain(v) for v in made if not isinstance(v, (int, torch.SymInt))]
        if not made or any(t is None or memory(t) not in places for t in tensors):
            return False
    return True


def written(node: Node) -> list[torch.Tensor]:
    """The tensors a call writes into."""
    return [t for x in _written_nodes(node) if (t := tensor_of(x)) is not None]


def writes_by_name(name: str) -> bool:
    """Whether functions and methods of a name write into their first argument."""
    in_place = name.endswith("_") and not name.endswith("__") and name not in OPERATORS
    return in_place or name in WRITERS


def _written_nodes(node: Node) -> list[Node]:
    if node.op not in ("call_function", "call_method"):
        return []
    name, found = name_of(node.target), [node.kwargs.get("out")] if node.kwargs else []
    if writes_by_name(name) or node.kwargs.get("inplace") is True:
        first = node.args[:1] or (node.kwargs.get("input"), node.kwargs.get("self"))
        found += node.args if name.startswith("_fused") else first
    if isinstance(node.target, torch._ops.OpOverload):
        pairs = zip(node.target._schema.arguments, node.args, strict=False)
        found += [x for a, x in pairs if a.alias_info is not None and a.alias_info.is_write]
    return [x for x in tree_leaves(found) if isinstance(x, Node)] if found else []


def _through_windows(view: Node) -> bool:
    """Whether a view is one of windows; AOTAutograd zeroes what lies between written windows."""
    while (t := tensor_of(view)) is not None:
        if name_of(view.target) == "unfold":
            return True
        before = view.args[0] if view.args else None
        base = tensor_of(before) if isinstance(before, Node) else None
        if not isinstance(before, Node) or base is None or memory(base) != memory(t):
            return False
        view = before
    return False


def _holds_program(node: Node) -> bool:
    """Whether it is a program inside the program; nobody looks there."""
    owner = node.graph.owning_module
    if node.op not in ("get_attr", "call_module"):
        return False
    return owner is None or any(name == node.target for name, _ in owner.named_modules())


def name_of(target: Target) -> str:
    """The name of the function or method that a node calls."""
    return target if isinstance(target, str) else getattr(target, "__name__", "")


OFF_BY_DEFAULT = frozenset((F.alpha_dropout, F.feature_alpha_dropout))
DROPOUTS = frozenset((F.dropout, torch.dropout)) | OFF_BY_DEFAULT
OPERATORS = frozenset(dir(operator))  # `and_` and `or_` end like writes and are none
AUGMENTED = frozenset(  # `iadd` beside `add`, `iand` beside `and_`; not `invert`
    n for n in OPERATORS if n.startswith("i") and not OPERATORS.isdisjoint((n[1:], f"{n[1:]}_"))
)
WRITERS = AUGMENTED | {f"__{n}__" for n in ("setitem", *AUGMENTED)} | {"setitem"}
