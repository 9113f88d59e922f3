"""Arguments of an export whose sizes are 1: torch.export takes a size that varies as at least 2.

A size of 1 changes what a program means: it broadcasts, `squeeze` drops it, and Python branches on
it. So it gets a program of its own, captured with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import torch
from torch.export import Dim, ShapesCollection

from tofuse.runtime.program_file import ConstantInput, Sizes, TensorInput
from tofuse.torch_internals.trees import tree_flatten, tree_leaves, tree_unflatten

Arguments = tuple[Sequence[object], Mapping[str, object]]
MAX_SIZES_ONE_AT_ONCE = 2  # of more sizes, only one is 1: there would be too many programs


def automatic_shapes(arguments: Arguments) -> ShapesCollection:
    """Return the shapes of arguments. Every size that can vary may vary."""
    shapes = ShapesCollection()
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, torch.Tensor) and leaf.dim():
            shapes[leaf] = tuple(Dim.AUTO if n > 1 else Dim.STATIC for n in leaf.shape)
    return shapes


def arguments_of_size_one(
    inputs: Sequence[TensorInput | ConstantInput],
    sizes: Sizes,
    may_be_one: Sequence[str],
    arguments: Arguments,
) -> Iterator[tuple[Arguments, ShapesCollection]]:
    """Yield arguments in which some sizes are 1, the most first, and how the others vary."""
    leaves, tree = tree_flatten(arguments)
    if len(leaves) != len(inputs):  # a program of torch.export has no arguments to narrow
        return
    most = len(may_be_one) if len(may_be_one) <= MAX_SIZES_ONE_AT_ONCE else 1
    for count in range(most, 0, -1):
        for ones in combinations(may_be_one, count):
            shapes, narrowed = ShapesCollection(), list(leaves)
            for k, (x, leaf) in enumerate(zip(inputs, leaves, strict=True)):
                if isinstance(x, TensorInput) and isinstance(leaf, torch.Tensor) and x.shape:
                    narrowed[k] = tensor = _narrowed(leaf, x, ones)
                    shapes[tensor] = tuple(
                        _dim(s, sizes) if n > 1 else Dim.STATIC
                        for s, n in zip(x.shape, tensor.shape, strict=True)
                    )
            yield tree_unflatten(narrowed, tree), shapes


def _narrowed(tensor: torch.Tensor, x: TensorInput, ones: Sequence[str]) -> torch.Tensor:
    """Return a part of a tensor, a leaf for autograd, in which the sizes `ones` are 1."""
    part = tensor.detach()
    for k, size in enumerate(x.shape):
        if size in ones:
            part = part.narrow(k, 0, 1)
    return part.clone().requires_grad_(tensor.requires_grad)


def _dim(size: int | str, sizes: Sizes) -> object:
    """Return how a size varies, as torch.export wants it."""
    if isinstance(size, int):
        return Dim.STATIC
    least, most = sizes[size]
    return Dim.AUTO(min=least, max=most)
