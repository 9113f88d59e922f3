"""The nodes that the backward may recompute, at what kind of cost."""

from __future__ import annotations

import torch
from torch.fx import Node

from tofuse.capture.fx.aliases import has_side_effect, is_random
from tofuse.capture.lower.lowerable import is_lowerable
from tofuse.capture.lower.lowering_rules import lowering_rule
from tofuse.capture.lower.rules.depthwise_convolution import DEPTHWISE_RULES
from tofuse.capture.lower.rules.pooling import POOLING_RULES
from tofuse.capture.lower.rules.reductions import REDUCTION_RULES
from tofuse.hints import fusion_hint_of
from tofuse.ir.fusion_hints import NO_FUSE
from tofuse.torch_internals.autograd_compiler import must_recompute
from tofuse.torch_internals.operators import OpOverload

# Rules of ops that read all of their operand.
MEMORY_PASS_RULES = frozenset(
    (*REDUCTION_RULES.values(), *POOLING_RULES.values(), *DEPTHWISE_RULES.values())
)


def is_recomputable(node: Node) -> bool:
    """Whether recomputing a node fuses into kernels of the backward."""
    if node.op == "get_attr":
        return True
    if node.op != "call_function" or has_side_effect(node) or is_random(node):
        return False
    is_separate_kernel = fusion_hint_of(node).startswith(NO_FUSE)
    if is_separate_kernel and node.meta.get("partitioner_tag") != "is_backward":
        return False
    if must_recompute(node) or is_symbolic_number(node):
        return True
    if not isinstance(node.target, OpOverload):
        return True  # a getitem
    return is_lowerable(node) and lowering_rule(node.target) not in MEMORY_PASS_RULES


def is_recomputable_or_reduction(node: Node) -> bool:
    """Whether recomputing a node costs at most passes over memory, and no library call."""
    return is_recomputable(node) or (is_repeatable(node) and lowering_rule(node.target) is not None)


def is_repeatable(node: Node) -> bool:
    """Whether a second run of a node gives the same value."""
    return node.op == "get_attr" or (
        node.op == "call_function" and not has_side_effect(node) and not is_random(node)
    )


def is_symbolic_number(node: Node) -> bool:
    """Whether a node's value is a symbolic integer or float."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat))
