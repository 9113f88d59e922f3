"""Sliding windows over the last dimensions of an image, and gradients through them.

The elements at one tap (position in a window) of all windows are a strided slice of the image. The
gradient of an image element sums a contribution of each window that holds it. Which taps it is at
depends on its index modulo the stride, so each residue is a separate sum; the sums are interleaved.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from tofuse.capture.lower.builder import Builder, Unsupported
from tofuse.capture.lower.call import AtenCall
from tofuse.cost.thresholds import MAX_POOLING_WINDOW_TAPS, MAX_RESIDUES
from tofuse.ir.dims import Dim, contiguous_strides, size_hint
from tofuse.ir.graph import Scalar, Value
from tofuse.ir.types import DType

Tap = tuple[int, ...]  # the position of an element in a window


@dataclass(frozen=True)
class WindowDimension:
    """The windows along one dimension."""

    size: int  # taps
    stride: int  # from window to window
    dilation: int  # from tap to tap
    padding_low: int  # elements before the first
    padding_high: int  # elements after the last
    count: Dim  # windows


def pooling_window(
    call: AtenCall, shape: Sequence[Dim], rank: int, dilation: str = ""
) -> tuple[WindowDimension, ...]:
    """Return the windows of a pooling of `self` over its last `rank` dimensions.

    `shape` is that of the result, `dilation` the name of the argument for it, if there is one.
    """
    sizes, lows = (call.per_dim(n, rank) for n in ("kernel_size", "padding"))
    strides = call.per_dim("stride" if call.integers("stride") else "kernel_size", rank)
    if math.prod(sizes) > MAX_POOLING_WINDOW_TAPS:
        raise Unsupported(f"a window of more than {MAX_POOLING_WINDOW_TAPS} elements")
    dilations = call.per_dim(dilation, rank) if dilation else (1,) * rank
    extents, floor = call.tensor("self").shape[-rank:], not call.flag("ceil_mode")
    return window_dimensions(extents, shape[-rank:], sizes, strides, dilations, lows, floor=floor)


def window_dimensions(
    extents: Sequence[Dim],
    counts: Sequence[Dim],
    sizes: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    lows: Sequence[int],
    *,
    floor: bool,
) -> tuple[WindowDimension, ...]:
    """Return the `counts` windows of an image of `extents` with low padding `lows`.

    Unless `floor`, the last window may reach beyond the image and needs high padding.
    """
    found = []
    for extent, count, size, stride, dilation, low in zip(
        extents, counts, sizes, strides, dilations, lows, strict=True
    ):
        span = (count + -1) * stride + (size - 1) * dilation + 1
        high = span + extent * -1 + -low
        if not isinstance(high, int) and (low or not floor):
            raise Unsupported("symbolic sizes")
        high = max(0, high) if isinstance(high, int) else 0
        found.append(WindowDimension(size, stride, dilation, low, high, count))
    return tuple(found)


def tap_slices(
    build: Builder, x: Value, windows: tuple[WindowDimension, ...], fill: float
) -> Iterator[tuple[Tap, Value]]:
    """Yield each tap and the slice of the image there, in PyTorch's order of taps."""
    x = _pad_last_dims(build, x, [(w.padding_low, w.padding_high) for w in windows], fill)
    for tap in itertools.product(*(range(w.size) for w in windows)):
        pairs = zip(tap, windows, strict=True)
        bounds = [(k * w.dilation, w.count, w.stride) for k, w in pairs]
        yield tap, _slice_last_dims(build, x, bounds)


@dataclass(frozen=True)
class _ImageDimension:
    """The elements of an image along one dimension, split by their residue modulo the stride.

    Residue r has the elements `stride * q + r` with q < `count`. The windows are padded with
    `padding_low` and `padding_high` windows of no contribution.
    """

    windows: WindowDimension
    extent: Dim
    count: Dim
    padding_low: int
    padding_high: int

    def taps(self, residue: int) -> list[tuple[int, int]]:
        """Return (tap, first of `count` padded windows) for each tap of a residue's elements.

        The order is that of the windows.
        """
        w = self.windows
        padded = residue + w.padding_low
        steps = ((k, *divmod(padded - k * w.dilation, w.stride)) for k in reversed(range(w.size)))
        return [(k, window + self.padding_low) for k, window, rest in steps if not rest]


def _image_dimension(w: WindowDimension, extent: Dim) -> _ImageDimension:
    count = extent
    if w.stride > 1:
        if not isinstance(extent, int):
            raise Unsupported("symbolic sizes")
        count = -(-extent // w.stride)
    first_windows = [
        (r + w.padding_low - k * w.dilation) // w.stride
        for r in range(w.stride)
        for k in range(w.size)
    ]
    high = max(first_windows) + count + w.count * -1
    if not isinstance(high, int):
        raise Unsupported("symbolic sizes")
    return _ImageDimension(w, extent, count, max(0, -min(first_windows)), max(0, high))


# From a residue, a tap and a slicing of padded windows to the contribution of these windows.
Contribution = Callable[[Tap, Tap, Callable[[Value], Value]], Value]


class WindowGradient:
    """The gradient of an image from contributions of the windows over it."""

    def __init__(
        self,
        call: AtenCall,
        image: torch.Tensor,
        windows: tuple[WindowDimension, ...],
        dtype: DType,
    ):
        """`image` is a result of the call; `dtype` is that of the sums."""
        shape, rank = call.type_of(image).shape, len(windows)
        self.build, self.outer, self.dtype = call.build, shape[:-rank], dtype
        self.dims = [_image_dimension(w, e) for w, e in zip(windows, shape[-rank:], strict=True)]
        if math.prod(w.stride for w in windows) > MAX_RESIDUES:
            raise Unsupported(f"windows more than {MAX_RESIDUES} elements apart")
        self.is_exact = all(d.count * d.windows.stride == d.extent for d in self.dims)
        if not self.is_exact and image.stride(-1) != 1:
            raise Unsupported("channels-last images that are no multiple of the stride")

    def pad_windows(self, x: Value, fill: float) -> Value:
        """Pad a tensor of one element per window with `fill`."""
        padding = [(d.padding_low, d.padding_high) for d in self.dims]
        return _pad_last_dims(self.build, x, padding, fill)

    def sum_over_windows(self, contribution: Contribution) -> Value:
        """Return the sum of contributions to each image element.

        `contribution(residue, tap, windows)` gets a function that slices a padded tensor to the
        windows that hold the elements of this residue at this tap.
        """
        build = self.build
        extents = [d.count * d.windows.stride for d in self.dims]
        padded = build.reshape(self._interleave((), contribution), (*self.outer, *extents))
        if self.is_exact:
            return padded
        return build.copy(_slice_last_dims(build, padded, [(0, d.extent, 1) for d in self.dims]))

    def _interleave(self, residue: Tap, contribution: Contribution) -> Value:
        """Concatenate the sums of all residues that begin with these."""
        k = len(residue)
        if k == len(self.dims):
            return self._sum_of_residue(residue, contribution)
        residues = range(self.dims[k].windows.stride)
        sums = [self._interleave((*residue, r), contribution) for r in residues]
        return self.build.cat(sums, len(self.outer) + 2 * k + 1)

    def _sum_of_residue(self, residue: Tap, contribution: Contribution) -> Value:
        build, counts = self.build, [d.count for d in self.dims]
        dim_taps = [d.taps(r) for d, r in zip(self.dims, residue, strict=True)]

        def term(taps: tuple[tuple[int, int], ...]) -> Value:
            bounds = [(start, count, 1) for (_, start), count in zip(taps, counts, strict=True)]
            tap = tuple(k for k, _ in taps)
            return contribution(residue, tap, lambda x: _slice_last_dims(build, x, bounds))

        if all(dim_taps):
            total = build.fold("add", map(term, itertools.product(*dim_taps)))
        else:
            total = build.full((*self.outer, *counts), Scalar(0.0), self.dtype)
        interleaved = (extent for count in counts for extent in (count, 1))
        return build.reshape(total, (*self.outer, *interleaved))

    def flat_indices(self, residue: Tap) -> Value:
        """Return the row-major indices in the image of a residue's elements; int32."""
        strides = contiguous_strides(tuple(d.extent for d in self.dims))
        axes = [
            (r * size_hint(stride), d.windows.stride * size_hint(stride), d.count)
            for d, r, stride in zip(self.dims, residue, strides, strict=True)
        ]
        return self.build.fold("add", axis_iotas(self.build, self.outer, axes))


def axis_iotas(
    build: Builder, outer: tuple[Dim, ...], axes: Sequence[tuple[int, int, Dim]]
) -> list[Value]:
    """Return start, start + step, ... along each of the last dimensions, broadcast to all.

    `axes` has (start, step, count) of each of them; the results are int32.
    """
    shape = (*outer, *(count for _, _, count in axes))
    found = []
    for d, (start, step, count) in enumerate(axes, len(outer)):
        found.append(build.broadcast(build.iota(count, start, step, DType.I32), shape, (d,)))
    return found


def _pad_last_dims(
    build: Builder, x: Value, padding: Sequence[tuple[int, int]], fill: float
) -> Value:
    outer = (0,) * (len(x.shape) - len(padding))
    low, high = zip(*padding, strict=True)
    return build.pad(x, (*outer, *low), (*outer, *high), Scalar(fill))


def _slice_last_dims(build: Builder, x: Value, bounds: Sequence[tuple[int, Dim, int]]) -> Value:
    """Slice to (start, extent, step) along each of the last dimensions."""
    for d, (start, extent, step) in enumerate(bounds, len(x.shape) - len(bounds)):
        x = build.slice(x, d, start, extent, step)
    return x
