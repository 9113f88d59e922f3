"""Convolutions on channels last: images are laid out anew once, and all that follows keeps it.

The library's convolutions read images with their channels side by side; others it copies into such
an order and back, at every layer. Here the copy is made where images come in, and results that the
caller sees lie as they would without.
"""

from __future__ import annotations

import torch
from torch._C import _functorch as functorch
from torch._functorch import predispatch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Interpreter, Node

from tofuse.capture.fx.mutation import written
from tofuse.capture.fx.node_tensors import memory, name_of, nbytes

RELAID = (
    "images lie channels last from the first convolution on, as the library's convolutions read "
    "them; results lie row by row again"
)
STAYS = (
    "images lie row by row, though the library's convolutions read them channels last: weights "
    "would be laid out anew at every call, and are {weights:.1f} MB to {images:.1f} MB of images"
)
LEAST = 2  # convolutions: a lone one would be copied to and from
WORTH = 2.5  # bytes of images whose two copies take as long as a weight's byte does; measured


def channels_last(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """The program with its images channels last, and a note that says so.

    The program itself where it has too few convolutions, may see the layout, or would not gain. The
    programs of Dynamo only, whose nodes have example values.
    """
    convolutions = _convolutions(gm)
    if len(convolutions) < LEAST or all(_window(n) == 1 for n in convolutions):
        return gm, ()
    calls = [n for n in gm.graph.nodes if n.op in ("call_function", "call_method")]
    if any(_sees_layout(n) for n in calls) or not _restorable(gm):
        return gm, ()
    weights = sum(nbytes(n.args[1]) for n in convolutions if _window(n) > 1)
    images = sum(nbytes(n.args[0]) + nbytes(n) for n in convolutions)
    if images < WORTH * weights:
        return gm, (STAYS.format(weights=weights / 1e6, images=images / 1e6),)
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    copy = GraphModule(gm, graph)
    for node in _convolutions(copy):
        image = node.args[0]
        assert isinstance(image, Node)
        with copy.graph.inserting_before(node):
            laid = _contiguous(copy.graph, image, torch.channels_last)
        node.args = (laid, *node.args[1:])
    _restore(copy)
    copy.recompile()
    return (copy, (RELAID,)) if _runs(copy) else (gm, ())


def _convolutions(gm: GraphModule) -> list[Node]:
    """The convolutions of images; not those under vmap, whose images have one dimension more."""
    depth, found = 0, []
    for node in gm.graph.nodes:
        depth += node.target is predispatch._vmap_increment_nesting
        depth -= node.target is predispatch._vmap_decrement_nesting
        if not depth and _is_convolution(node):
            found.append(node)
    return found


def _is_convolution(node: Node) -> bool:
    """A two-dimensional one of float32 on the CPU, of an image that lies row by row."""
    if node.target is not torch.conv2d or len(node.args) < 2 or not isinstance(node.args[0], Node):
        return False
    image, made = node.args[0].meta.get("example_value"), node.meta.get("example_value")
    if not isinstance(image, torch.Tensor) or not isinstance(made, torch.Tensor):
        return False
    plain = image.dim() == 4 and image.device.type == "cpu" and image.dtype is torch.float32
    return plain and image.is_contiguous()


def _window(node: Node) -> int:
    weight = node.args[1]
    value = weight.meta.get("example_value") if isinstance(weight, Node) else None
    return int(value.shape[2] * value.shape[3]) if isinstance(value, torch.Tensor) else 1


def _sees_layout(node: Node) -> bool:
    """Whether what a call does depends on strides, or it writes into what may be view or copy."""
    if name_of(node.target) in STRIDES:
        return True
    if not written(node):
        return False
    target = node.args[0] if node.args else None
    if not isinstance(target, Node):
        return True
    return _may_copy(target) or any(map(_may_copy, target.users))


def _may_copy(node: Node) -> bool:
    """Whether a call gives a view of some tensors, and a copy of others."""
    return name_of(node.target) in COPIES


def _results(gm: GraphModule) -> list[Node]:
    """The results of three dimensions and more."""
    nodes = next(n for n in gm.graph.nodes if n.op == "output").all_input_nodes
    values = [(n, n.meta.get("example_value")) for n in nodes if n.op != "placeholder"]
    return [n for n, v in values if isinstance(v, torch.Tensor) and v.dim() > 2]


def _restorable(gm: GraphModule) -> bool:
    """Whether results lie row by row, each in memory of its own: copies would part those that
    share it."""
    output = next(n for n in gm.graph.nodes if n.op == "output")
    values = [n.meta.get("example_value") for n in output.all_input_nodes]
    places = [memory(v) for v in values if isinstance(v, torch.Tensor)]
    alone = len(places) == len(set(places))
    return alone and all(n.meta["example_value"].is_contiguous() for n in _results(gm))


def _runs(gm: GraphModule) -> bool:
    """Whether shapes can be followed through the program: a view may need rows in one piece."""
    values = [n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder")]
    mode = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)
    if mode is None:
        return False
    try:
        with mode, torch.no_grad():
            Interpreter(gm).run(*values)
    except (RuntimeError, ValueError):
        while functorch.peek_interpreter_stack() is not None:
            predispatch._vmap_decrement_nesting()  # where it stopped, nobody has
        return False
    return True


def _restore(gm: GraphModule) -> None:
    """Lay results out row by row."""
    output = next(n for n in gm.graph.nodes if n.op == "output")
    for node in _results(gm):
        with gm.graph.inserting_before(output):
            laid = _contiguous(gm.graph, node, torch.contiguous_format)
        output.replace_input_with(node, laid)


def _contiguous(graph: torch.fx.Graph, node: Node, layout: torch.memory_format) -> Node:
    made = graph.call_method("contiguous", (node,), {"memory_format": layout})
    made.meta = dict(node.meta)
    return made


STRIDES = frozenset(("as_strided", "stride", "storage_offset", "is_contiguous", "untyped_storage"))
COPIES = frozenset(("reshape", "flatten", "contiguous", "unflatten", "to", "ravel", "view_as"))
