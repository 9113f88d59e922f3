"""Pytrees: nested lists, tuples and dicts, flattened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from tofuse.torch_internals.private_names import TRACING, always, essential, private


def _tree_leaves(tree: object, is_leaf: Callable[[object], bool] | None = None) -> list[object]:
    """Return the leaves of nested lists, tuples and dicts."""
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    if not isinstance(tree, (list, tuple)) or (is_leaf is not None and is_leaf(tree)):
        return [tree]
    return [leaf for part in tree for leaf in _tree_leaves(part, is_leaf)]


if TYPE_CHECKING:
    from torch.utils._pytree import TreeSpec as TreeSpec
    from torch.utils._pytree import register_pytree_node as register_pytree_node
    from torch.utils._pytree import tree_flatten as tree_flatten
    from torch.utils._pytree import tree_leaves as tree_leaves
    from torch.utils._pytree import tree_map as tree_map
    from torch.utils._pytree import tree_unflatten as tree_unflatten
    from torch.utils._pytree import treespec_dumps as tree_to_text
    from torch.utils._pytree import treespec_loads as tree_from_text
else:
    TreeSpec = object  # only in annotations
    tree_leaves = private("torch.utils._pytree", "tree_leaves", TRACING, _tree_leaves)
    register_pytree_node = private(
        "torch.utils._pytree", "register_pytree_node", TRACING, always(None)
    )
    tree_flatten, tree_map, tree_unflatten = essential(
        "torch.utils._pytree", "tree_flatten", "tree_map", "tree_unflatten", lost=TRACING
    )
    tree_to_text, tree_from_text = essential(
        "torch.utils._pytree", "treespec_dumps", "treespec_loads", lost="export and load"
    )


def tensor_leaves(tree: object) -> list[torch.Tensor]:
    """Return the tensors in nested lists, tuples and dicts."""
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
