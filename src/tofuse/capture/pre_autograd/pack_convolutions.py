"""Convolutions of channels-last images by frozen parameters, whose weights are packed once.

The library converts the weight of a convolution to a layout of its own at every call. The scale and
shift of a normalization by running statistics become part of weight and bias. The library computes
an activation, or the addition of another image, with the convolution.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import Argument

from tofuse.capture.fx.aliases import written_nodes
from tofuse.capture.fx.devices import on_host
from tofuse.capture.fx.node_tensors import example_tensor
from tofuse.capture.pre_autograd.channels_last import node_strides
from tofuse.capture.pre_autograd.frozen_parameters import is_frozen, kept_call
from tofuse.capture.pre_autograd.packed_convolution import OPERATOR
from tofuse.cost.host import host
from tofuse.cost.thresholds import MAX_BLOCKED_FLOAT32_WEIGHT_L2_SHARE
from tofuse.torch_internals.layouts import suggest_memory_format
from tofuse.torch_internals.packed_convolutions import can_pack, pack_weight
from tofuse.torch_internals.symbolic_shapes import trying_operators

PACKED = (
    "the weights of {count} convolutions are packed once, and again when a parameter is written; "
    "{norms} normalizations are part of them"
)
DTYPES = (torch.float32, torch.bfloat16)
NO_ACTIVATION = ("none", (), "")
Call = Mapping[str, Argument]  # the arguments of a call by name
Geometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]
Activation = tuple[str, tuple[float, ...], str]  # oneDNN's name, numbers and algorithm


def pack_convolutions(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Replace in place convolutions by frozen parameters; return a note."""
    chains = []
    for node in list(gm.graph.nodes):
        if (chain := _chain(node)) is not None and _replace(chain):
            chains.append(chain)
    if not chains:
        return gm, ()
    gm.recompile()
    norms = sum(c.norm is not None for c in chains)
    return gm, (PACKED.format(count=len(chains), norms=norms),)


@dataclass(frozen=True)
class _Chain:
    """Calls that one call of the library replaces.

    These are a convolution, perhaps the normalization of its result, and perhaps an activation or
    the addition of the image `added`. `last` is the last of them.
    """

    call: Node
    norm: Node | None
    last: Node
    activation: Activation = NO_ACTIVATION
    added: Node | None = None


def _chain(node: Node) -> _Chain | None:
    """Return the chain that begins with a call; None if no chain does."""
    if not _is_packable(node):
        return None
    user = _only_user(node)
    norm = user if user is not None and _is_foldable_norm(user, node) else None
    last = norm or node
    user = _only_user(last)
    if user is not None and _have_same_type(user, last):
        activation, added = _activation(user, last), _added_image(user, last)
        longer = _Chain(node, norm, user, activation or NO_ACTIVATION, added)
        if (activation or added) and _is_movable(longer):
            return longer
    chain = _Chain(node, norm, last)
    return chain if _is_movable(chain) else None


def _is_packable(node: Node) -> bool:
    """Return whether a call is a convolution of channels-last images by frozen parameters."""
    if node.target is not torch.conv2d or not torch.backends.mkldnn.enabled:
        return False
    call = _bind(_conv2d, node)
    image, weight, result = (example_tensor(n) for n in (call["input"], call["weight"], node))
    if image is None or weight is None or result is None or image.dim() != 4:
        return False
    if not all(is_frozen(n) for n in (call["weight"], call["bias"]) if n is not None):
        return False
    return (
        on_host(image)
        and image.dtype == weight.dtype == result.dtype
        and image.dtype in DTYPES
        and all(isinstance(n, int) for n in weight.shape)
        and not _is_fused_product(image, weight)
        and not isinstance(call["padding"], str)
        and _is_channels_last(call["input"])
        and can_pack(image.dtype)
    )


def _is_fused_product(image: Tensor, weight: Tensor) -> bool:
    """Return whether a convolution is a product of matrices that fuses with what surrounds it.

    Its windows have one pixel. The images have one pixel, too, or the weight is small and float32.
    """
    if tuple(weight.shape[2:]) != (1, 1):
        return False
    is_pixel = all(isinstance(n, int) and n == 1 for n in image.shape[2:])
    most_bytes = MAX_BLOCKED_FLOAT32_WEIGHT_L2_SHARE * host().l2_bytes
    return is_pixel or (weight.dtype == torch.float32 and weight.nbytes <= most_bytes)


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _have_same_type(a: Node, b: Node) -> bool:
    x, y = example_tensor(a), example_tensor(b)
    return x is not None and y is not None and (x.dtype, x.shape) == (y.dtype, y.shape)


def _is_channels_last(image: Argument) -> bool:
    """Return whether an image is channels last, by the pass `channels_last` or as it was."""
    if isinstance(image, Node) and image.kwargs.get("memory_format") is torch.channels_last:
        return True
    tensor = example_tensor(image)
    return tensor is not None and suggest_memory_format(tensor) is torch.channels_last


def _is_movable(chain: _Chain) -> bool:
    """Return whether no call writes between the convolution and the end of its chain."""
    node = chain.call.next
    while node is not chain.last and chain.call is not chain.last:
        if written_nodes(node):
            return False
        node = node.next
    return True


def _is_foldable_norm(node: Node, image: Node) -> bool:
    """Return whether a call normalizes `image` by frozen running statistics."""
    if node.target is not F.batch_norm:
        return False
    call = _bind(F.batch_norm, node)
    affine = [n for n in (call["weight"], call["bias"]) if n is not None]
    return (
        call["input"] is image
        and call["training"] is False
        and _have_same_type(node, image)
        and isinstance(call["eps"], float)
        and all(is_frozen(n) for n in (call["running_mean"], call["running_var"], *affine))
    )


def _activation(node: Node, image: Node) -> Activation | None:
    """Return oneDNN's form of an activation of `image`; None if oneDNN computes another function.

    oneDNN's relu, hardtanh, hardsigmoid and exact gelu turn NaN into numbers.
    """
    if node.op != "call_function" or node.args[:1] != (image,):
        return None
    if node.target is F.leaky_relu:
        slope = _bind(F.leaky_relu, node)["negative_slope"]
        return ("leaky_relu", (slope,), "") if isinstance(slope, float) else None
    if node.target is F.gelu:
        return ("gelu", (), "tanh") if node.kwargs == {"approximate": "tanh"} else None
    name = ACTIVATIONS.get(node.target)
    return None if name is None or "out" in node.kwargs else (name, (), "")


def _added_image(node: Node, image: Node) -> Node | None:
    """Return the image of the same type that a call adds to `image`, perhaps in place."""
    if node.target not in ADDITIONS or node.kwargs or len(node.args) != 2:
        return None
    first, second = node.args
    other = second if first is image else first
    writes_other = node.target is operator.iadd and first is not image
    if not isinstance(other, Node) or other is image or writes_other:
        return None
    return other if _have_same_type(other, image) else None


def _replace(chain: _Chain) -> bool:
    """Replace the calls of a chain by one of the library, and one that packs the weight.

    Return False, and replace nothing, if the result would have other strides.
    """
    graph, call = chain.call.graph, _bind(_conv2d, chain.call)
    image, weight = example_tensor(call["input"]), example_tensor(call["weight"])
    assert image is not None and weight is not None
    geometry = _geometry(call)
    shape = tuple(image.shape) if all(isinstance(n, int) for n in image.shape) else None
    norm: Call = {} if chain.norm is None else _bind(F.batch_norm, chain.norm)
    statistics = [norm.get(k) for k in ("running_mean", "running_var", "weight", "bias", "eps")]
    with trying_operators(image.fake_mode):
        fakes = weight.new_empty(weight.shape), weight.new_empty(weight.shape[:1])
    with graph.inserting_before(chain.last):
        operands = (call["weight"], call["bias"], *statistics, *geometry, shape)
        packed = graph.call_function(packed_parameters, operands)
        packed.meta = dict(chain.call.meta, example_value=fakes)
        parts = []
        for k in range(1 + (norm != {} or call["bias"] is not None)):
            parts.append(graph.call_function(operator.getitem, (packed, k)))
            parts[k].meta = dict(chain.call.meta, example_value=fakes[k])
        bias = parts[1] if len(parts) > 1 else None
        operands = (call["input"], parts[0], bias, chain.added, *geometry, *chain.activation)
        result = graph.call_function(OPERATOR, operands)
    values = [n.meta["example_value"] if isinstance(n, Node) else n for n in operands]
    with trying_operators(image.fake_mode):
        result.meta = dict(chain.last.meta, example_value=OPERATOR(*values))
    if result.meta["example_value"].stride() != node_strides(chain.last):
        for unused in (result, *reversed(parts), packed):
            graph.erase_node(unused)
        return False
    chain.last.replace_all_uses_with(result)
    for replaced in dict.fromkeys(filter(None, (chain.last, chain.norm, chain.call))):
        graph.erase_node(replaced)
    return True


def _geometry(call: Call) -> Geometry:
    """Return padding, stride, dilation and groups of a convolution."""
    groups = call["groups"]
    assert isinstance(groups, int)
    return _pair(call["padding"]), _pair(call["stride"]), _pair(call["dilation"]), groups


def _pair(value: Argument) -> tuple[int, int]:
    values = value if isinstance(value, (list, tuple)) else (value,)
    first, last = values[0], values[-1]
    assert isinstance(first, int) and isinstance(last, int)
    return first, last


@kept_call
def packed_parameters(
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    scale: Tensor | None,
    shift: Tensor | None,
    eps: float | None,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    image_shape: Sequence[int] | None,
) -> tuple[Tensor, Tensor | None]:
    """Return the packed weight and the bias of a convolution and the normalization of its result.

    ((conv(x, w) + b) - mean) * s + shift = conv(x, w * s) + (b - mean) * s + shift, where s is
    scale / sqrt(variance + eps), for each channel of the result. Both are computed in float64.
    """
    packed, added = weight.detach(), None if bias is None else bias.detach()
    if mean is not None and variance is not None and eps is not None:
        factor = (variance.double() + eps).rsqrt() * (1.0 if scale is None else scale)
        wide = ((0.0 if added is None else added) - mean.double()) * factor
        added = (wide if shift is None else wide + shift).to(weight.dtype)
        packed = (packed * factor.view(-1, 1, 1, 1)).to(weight.dtype)
    geometry = padding, stride, dilation, groups
    return pack_weight(packed.contiguous(), *geometry, image_shape), added


def _conv2d(
    input: object,
    weight: object,
    bias: object = None,
    stride: object = 1,
    padding: object = 0,
    dilation: object = 1,
    groups: object = 1,
) -> None:
    """Stand for the signature of `torch.conv2d`, which is no function of Python."""


def _bind(function: Callable[..., object], node: Node) -> Call:
    """Return the arguments of a call by name."""
    bound = inspect.signature(function).bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    return bound.arguments


ACTIVATIONS: dict[object, str] = {
    F.hardswish: "hardswish",
    F.silu: "swish",
    torch.sigmoid: "sigmoid",
    torch.tanh: "tanh",
}
ADDITIONS = (operator.add, operator.iadd, torch.add)
