"""Whether a program of Dynamo's may be compiled, or PyTorch has to run it as it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._C import _are_functorch_transforms_active as transforms_active
from torch.autograd import forward_ad
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from tofuse.capture.fx.mutation import _written_memory, _written_nodes, written
from tofuse.capture.fx.node_tensors import _plain, memory, name_of, tensor_of
from tofuse.capture.fx.overlap import _span, collide, overlaps_itself


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


def watched() -> bool:
    """Whether something sees what PyTorch's operators do, and would see them being captured."""
    modes = torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack()
    return bool(modes) or forward_ad._current_level >= 0 or transforms_active()


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
