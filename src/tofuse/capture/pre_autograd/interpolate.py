"""Calls of `interpolate` that AOTAutograd must not decompose.

AOTAutograd decomposes `interpolate` whatever its table says. On bytes, ATen rounds fixed-point
sums, so a decomposition differs by one in a few elements. In training, the decomposition gathers at
computed indices, and its gradient adds to each pixel one element after the other; ATen's gradients
are sums. Only repetition by whole factors needs no such indices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, Union

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.fx import GraphModule, Node
from torch.fx.node import Argument

from tofuse.capture.fx.devices import on_host
from tofuse.torch_internals.dispatch import without_python_dispatcher
from tofuse.torch_internals.layouts import suggest_memory_format

N = TypeVar("N", int, float)
PerDimension = Union[N, Sequence[N], None]  # noqa: UP007  (evaluated at run time)
Scales = Sequence[Union[float, None]]  # noqa: UP007  (evaluated at run time)

aten = torch.ops.aten
OPERATORS: dict[tuple[object, int, bool], Callable[..., Tensor]] = {
    ("nearest", 1, False): aten.upsample_nearest1d,
    ("nearest", 2, False): aten.upsample_nearest2d,
    ("nearest", 3, False): aten.upsample_nearest3d,
    ("nearest-exact", 1, False): aten._upsample_nearest_exact1d,
    ("nearest-exact", 2, False): aten._upsample_nearest_exact2d,
    ("nearest-exact", 3, False): aten._upsample_nearest_exact3d,
    ("linear", 1, False): aten.upsample_linear1d,
    ("bilinear", 2, False): aten.upsample_bilinear2d,
    ("bicubic", 2, False): aten.upsample_bicubic2d,
    ("trilinear", 3, False): aten.upsample_trilinear3d,
    ("bilinear", 2, True): aten._upsample_bilinear2d_aa,
    ("bicubic", 2, True): aten._upsample_bicubic2d_aa,
}
NEAREST = ("nearest", "nearest-exact")
GRADIENTS = {key: getattr(aten, f"{call.__name__}_backward") for key, call in OPERATORS.items()}
_OPTIONS = "str mode, bool antialias, bool corners, float?[] scales"
_LIBRARY = torch.library.Library("tofuse", "FRAGMENT")
_LIBRARY.define(
    "resize_bytes(Tensor x, SymInt[]? size, float[]? scale, str mode, bool? corners, "
    "bool? recompute) -> Tensor"
)
_LIBRARY.impl("resize_bytes", F.interpolate, "CPU")
torch.library.register_fake("tofuse::resize_bytes", F.interpolate, lib=_LIBRARY)
_LIBRARY.define(f"resize(Tensor x, SymInt[] size, {_OPTIONS}) -> Tensor")
_LIBRARY.define(f"resize_backward(Tensor gradient, SymInt[] size, {_OPTIONS}) -> Tensor")


def _resize_call(
    image: Tensor, size: Sequence[int], mode: str, antialias: bool, corners: bool, scales: Scales
) -> Tensor:
    """Return an image of another size, by one ATen call."""
    options = [] if mode in NEAREST else [corners]
    result: Tensor = OPERATORS[mode, len(size), antialias](image, size, *options, *scales)
    return result.contiguous(memory_format=suggest_memory_format(image))


def _gradient_call(
    gradient: Tensor, size: Sequence[int], mode: str, antialias: bool, corners: bool, scales: Scales
) -> Tensor:
    """Return the gradient of an image of all these sizes, by one ATen call."""
    options, after = [] if mode in NEAREST else [corners], gradient.shape[2:]
    result: Tensor = GRADIENTS[mode, len(after), antialias](
        gradient, after, size, *options, *scales
    )
    return result.contiguous(memory_format=suggest_memory_format(gradient))


def _empty_like(image: Tensor, size: Sequence[int], *options: object) -> Tensor:
    """Return a fake result of these sizes, in the memory order of the image."""
    shape = [*image.shape[: image.dim() - len(size)], *size]
    return image.new_empty(shape).contiguous(memory_format=suggest_memory_format(image))


class _Context(FunctionCtx):
    size: Sequence[int]
    options: Sequence[object]


def _remember(
    ctx: _Context, inputs: tuple[Tensor, Sequence[int], str, bool, bool, Scales], output: Tensor
) -> None:
    ctx.size, ctx.options = inputs[0].shape, inputs[2:]


def _gradient(ctx: _Context, gradient: Tensor) -> tuple[Tensor | None, ...]:
    result = torch.ops.tofuse.resize_backward(gradient, ctx.size, *ctx.options)
    return result, None, None, None, None, None


_LIBRARY.impl("resize", _resize_call, "CPU")
_LIBRARY.impl("resize_backward", _gradient_call, "CPU")
for _name in ("resize", "resize_backward"):
    torch.library.register_fake(f"tofuse::{_name}", _empty_like, lib=_LIBRARY)
torch.library.register_autograd("tofuse::resize", _gradient, setup_context=_remember, lib=_LIBRARY)


def interpolate(gm: GraphModule) -> tuple[GraphModule, tuple[str, ...]]:
    """Replace in place calls of `interpolate` that AOTAutograd must not decompose.

    Of bytes, by `tofuse::resize_bytes`; of images that require grad, by a call without
    decompositions.
    """
    for node in gm.graph.find_nodes(op="call_function", target=F.interpolate):
        arguments = dict(zip(NAMES, node.args, strict=False)) | node.kwargs
        image = arguments["input"]
        value = image.meta.get("example_value") if isinstance(image, Node) else None
        if not isinstance(value, Tensor):
            continue
        if value.dtype == torch.uint8 and not arguments.get("antialias"):
            size, scale = (
                _per_dimension(arguments.get(n), value.dim() - 2) for n in ("size", "scale_factor")
            )
            mode = arguments.get("mode", "nearest")
            rest = arguments.get("align_corners"), arguments.get("recompute_scale_factor")
            node.target = torch.ops.tofuse.resize_bytes.default
            node.args, node.kwargs = (image, size, scale, mode, *rest), {}
        elif (
            torch.is_grad_enabled()
            and value.requires_grad
            and on_host(value)
            and _operator(arguments, value) in OPERATORS
            and not _is_whole_repetition(arguments, value, node.meta["example_value"])
        ):
            node.target = _resize
        gm.recompile()
    return gm, ()


def _resize(
    input: Tensor,
    size: PerDimension[int] = None,
    scale_factor: PerDimension[float] = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Return `F.interpolate` of the same arguments, by a call that is not decomposed.

    ATen would compute the result's sizes from integers; here they may be symbols. torch cannot
    trace most gradients of symbolic sizes: an operator of ours calls them.
    """
    image, count = input, input.dim() - 2
    factors = _per_dimension(scale_factor, count) or []
    sizes = _per_dimension(size, count) or [
        _scaled(n, f) for n, f in zip(image.shape[2:], factors, strict=True)
    ]
    scales: Scales = [None] * count if size is not None or recompute_scale_factor else factors
    options = mode, antialias, bool(align_corners), scales
    if not all(type(n) is int for n in (*image.shape, *sizes)):
        result: Tensor = torch.ops.tofuse.resize(image, sizes, *options)
        return result
    with without_python_dispatcher():
        return _resize_call(image, sizes, *options)


def _scaled(size: int, factor: float) -> int:
    """Return the size of a resized dimension: `size * factor`, rounded down."""
    return size * int(factor) if factor == int(factor) else torch.sym_int(size * factor)


def _is_whole_repetition(arguments: Mapping[str, Argument], image: Tensor, result: Tensor) -> bool:
    """Return whether each pixel is repeated a whole number of times, known while compiling."""
    before, after = image.shape[2:], result.shape[2:]
    if not all(isinstance(n, int) for n in (*before, *after)):
        return False
    divisible = all(b and a % b == 0 for b, a in zip(before, after, strict=True))
    scale = arguments.get("scale_factor")
    scales = scale if isinstance(scale, (list, tuple)) else [scale]
    exact = all(s is None or (isinstance(s, (int, float)) and s == int(s)) for s in scales)
    return divisible and exact and arguments.get("mode", "nearest") in NEAREST


def _operator(arguments: Mapping[str, Argument], image: Tensor) -> tuple[object, int, bool]:
    """Return the mode of a call, the number of image dimensions, and whether it antialiases."""
    return arguments.get("mode", "nearest"), image.dim() - 2, bool(arguments.get("antialias"))


def _per_dimension(value: PerDimension[N], count: int) -> Sequence[N] | None:
    """Return the value as a list with an entry for each image dimension; None stays None."""
    if value is None or isinstance(value, Sequence):
        return value
    return [value] * count


NAMES = ("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")
