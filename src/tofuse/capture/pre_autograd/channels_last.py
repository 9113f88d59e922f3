"""Conversion of images to channels-last once, from the first convolution to the results.

The library's convolutions read channels-last images. It copies other images to channels-last and
back at every layer. This pass copies each image before its convolution; following layers keep the
layout, so the copies inside are no-ops. Results are copied back to the layout that eager returns.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Union

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import Argument

from tofuse.capture.fx.aliases import storage_id, written_tensors
from tofuse.capture.fx.devices import on_host
from tofuse.capture.fx.node_tensors import example_tensor, node_nbytes, target_name
from tofuse.capture.pre_autograd.frozen_parameters import is_frozen
from tofuse.cost.thresholds import (
    IMAGE_BYTES_PER_WEIGHT_BYTE,
    MIN_GAINING_IMAGE_SHARE,
    MIN_TRAINED_CHANNELS_LAST_CONVOLUTIONS,
    MIN_TRAINED_GAINING_IMAGE_SHARE,
)
from tofuse.torch_internals.fake_tensors import FakeTensor
from tofuse.torch_internals.symbolic_shapes import trying_operators
from tofuse.torch_internals.transforms import CAN_VMAP, enter_vmap, leave_all_vmaps, leave_vmap

CONVERTED = (
    "images are channels last from the first convolution on, the layout that the library's "
    "convolutions read; results are converted back to the default layout"
)
Dimension = Union[int, torch.SymInt]  # noqa: UP007  (evaluated at run time)
NOT_CONVERTED = (
    "images keep the default layout, though the library's convolutions read channels last: weights "
    "would be converted at every call, and are {weights:.1f} MB to {images:.1f} MB of images"
)


def channels_last(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Return a copy of the program with channels-last images, and a note.

    Return the program itself if it has too few convolutions, may observe the layout, or would not
    become faster.
    """
    convolutions = _convolutions(gm)
    is_trained = _is_trained(gm)
    fewest = MIN_TRAINED_CHANNELS_LAST_CONVOLUTIONS if is_trained else 1
    if not CAN_VMAP or len(convolutions) < fewest:
        return gm, ()
    images = {n: node_nbytes(n.args[0]) + node_nbytes(n) for n in convolutions}
    gaining = sum(nbytes for n, nbytes in images.items() if _gains(n, is_trained))
    frozen = sum(nbytes for n, nbytes in images.items() if _is_packed(n))
    least_share = MIN_TRAINED_GAINING_IMAGE_SHARE if is_trained else MIN_GAINING_IMAGE_SHARE
    if gaining < least_share * sum(images.values()) and not frozen:
        return gm, ()
    calls = [n for n in gm.graph.nodes if n.op in ("call_function", "call_method")]
    if any(map(_observes_layout, calls)) or not _results_are_restorable(gm):
        return gm, ()
    windowed = (n for n in convolutions if _window_size(n) > 1)
    weights = sum(node_nbytes(n.args[1]) for n in windowed if not _is_packed(n))
    total = sum(images.values())
    if total < IMAGE_BYTES_PER_WEIGHT_BYTE * weights:
        return gm, (NOT_CONVERTED.format(weights=weights / 1e6, images=total / 1e6),)
    copy = GraphModule(gm, deepcopy(gm.graph))
    for node in _convolutions(copy):
        _convert(node.args[0], node, torch.channels_last)
    for node in _image_results(copy):
        _convert(node, copy.graph.output_node(), torch.contiguous_format)
    copy.recompile()
    return (copy, (CONVERTED,)) if _traces(copy) else (gm, ())


def _is_trained(gm: GraphModule) -> bool:
    """Return whether a call of the program may have a backward."""
    values = (n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder"))
    requires = any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
    return requires and torch.is_grad_enabled()


def _convolutions(gm: GraphModule) -> list[Node]:
    """Return the convolutions of images, except under vmap, where images have a fifth dimension."""
    depth, convolutions = 0, []
    for node in gm.graph.nodes:
        depth += node.target is enter_vmap
        depth -= node.target is leave_vmap
        if not depth and _is_convolution(node):
            convolutions.append(node)
    return convolutions


def _is_convolution(node: Node) -> bool:
    """Return whether a call is a 2-D convolution of a contiguous image on the CPU.

    Images without elements are left out: one layout cannot be told from the other.
    """
    if node.target is not torch.conv2d or len(node.args) < 2:
        return False
    image = example_tensor(node.args[0])
    if image is None or example_tensor(node) is None:
        return False
    supported = image.dim() == 4 and on_host(image) and image.dtype in DTYPES
    is_empty = any(isinstance(n, int) and n == 0 for n in image.shape)
    return supported and not is_empty and image.is_contiguous()


def _window_size(node: Node) -> int:
    weight = example_tensor(node.args[1])
    return 1 if weight is None else int(weight.shape[2] * weight.shape[3])


def _is_packed(node: Node) -> bool:
    """Return whether `pack_convolutions` packs the weight of a convolution with windows."""
    return _window_size(node) > 1 and is_frozen(node.args[1])


def _gains(node: Node, is_trained: bool) -> bool:
    """Return whether the library computes a convolution faster on channels-last images.

    Pointwise convolutions are matrix products in either layout. In training, depthwise ones are
    kernels of ours in the default layout.
    """
    weight = example_tensor(node.args[1])
    is_depthwise = weight is not None and weight.shape[1] == 1
    return _window_size(node) > 1 and not (is_trained and is_depthwise)


def _observes_layout(node: Node) -> bool:
    """Return whether a call depends on strides, or writes into what may be a view or a copy."""
    if target_name(node.target) in STRIDE_READERS:
        return True
    if not written_tensors(node):
        return False
    written = node.args[0] if node.args else None
    if not isinstance(written, Node):
        return True
    return any(target_name(n.target) in VIEW_OR_COPY for n in (written, *written.users))


def _image_results(gm: GraphModule) -> list[Node]:
    """Return the results with three dimensions or more."""
    nodes = gm.graph.output_node().all_input_nodes
    values = [(n, n.meta.get("example_value")) for n in nodes if n.op != "placeholder"]
    return [n for n, v in values if isinstance(v, torch.Tensor) and v.dim() > 2]


def _results_are_restorable(gm: GraphModule) -> bool:
    """Return whether results are contiguous and share no memory, which copies would separate."""
    output = next(n for n in gm.graph.nodes if n.op == "output")
    values = [n.meta.get("example_value") for n in output.all_input_nodes]
    storages = [storage_id(v) for v in values if isinstance(v, torch.Tensor)]
    distinct = len(storages) == len(set(storages))
    return distinct and all(n.meta["example_value"].is_contiguous() for n in _image_results(gm))


def _traces(gm: GraphModule) -> bool:
    """Return whether the program runs on fake tensors: a view may need the default layout."""
    values = [n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder")]
    mode = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)
    if mode is None:
        return False
    try:
        with trying_operators(mode):
            _Layouts(gm).run(*values)
    except (RuntimeError, ValueError):
        leave_all_vmaps()
        return False
    return True


class _Layouts(Interpreter):
    """An interpreter that notes the strides of each tensor in the meta of its node."""

    def run_node(self, node: Node) -> object:
        value = super().run_node(node)
        if isinstance(value, torch.Tensor):
            node.meta[STRIDES_META_KEY] = value.stride()
        return value


def node_strides(node: Node) -> tuple[Dimension, ...] | None:
    """Return the strides of a node's tensor, after the pass `channels_last`; None without one."""
    tensor = example_tensor(node)
    found: tuple[Dimension, ...] | None = node.meta.get(STRIDES_META_KEY)
    return found or (None if tensor is None else tensor.stride())


def _convert(tensor: Argument, reader: Node, layout: torch.memory_format) -> None:
    """Let `reader` read the tensor in another layout."""
    assert isinstance(tensor, Node)
    with reader.graph.inserting_before(reader):
        call = reader.graph.call_method("contiguous", (tensor,), {"memory_format": layout})
    call.meta = dict(tensor.meta)
    reader.replace_input_with(tensor, call)


STRIDES_META_KEY = "tofuse_strides"
DTYPES = (torch.float32, torch.bfloat16)
STRIDE_READERS = frozenset(
    ("as_strided", "stride", "storage_offset", "is_contiguous", "untyped_storage")
)
VIEW_OR_COPY = frozenset(
    ("reshape", "flatten", "contiguous", "unflatten", "to", "ravel", "view_as")
)
