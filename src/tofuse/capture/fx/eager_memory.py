"""The memory that the eager program holds, with each tensor freed at its last use.

The nodes of one decomposed call count as one call. Tensors between them do not exist in eager.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch.fx import GraphModule, Node

from tofuse.capture.fx.aliases import node_storages
from tofuse.capture.fx.phases import backward_nodes
from tofuse.torch_internals.trees import tree_leaves


@dataclass(frozen=True)
class EagerMemory:
    """Bytes that a program holds besides its arguments, in eager and in our partition.

    Saved tensors live only for the backward: results of the forward do not count.
    """

    forward_peak: int  # of eager
    saved_bytes: int = 0  # of eager
    backward_peak: int = 0  # of eager
    our_saved_bytes: int = 0
    recomputed_calls: int = 0  # by our backward, to save less
    budget_bytes: int | None = None  # of the user, for saved tensors
    saved_arguments: tuple[str, ...] = ()  # of our backward: the saved tensors among them
    num_forward_outputs: int = 0  # that the caller gets; the saved tensors follow them

    def peak(self, phase: str) -> int:
        """Return eager's peak in a phase: "forward", "backward" or "inference"."""
        return self.backward_peak if phase == "backward" else self.forward_peak


def simulate_eager(
    gm: GraphModule, num_fwd_outputs: int | None, images_converted: bool = False
) -> EagerMemory:
    """Return the eager memory of a joint graph, or of an inference graph (None).

    If the pass `channels_last` has converted images, eager saves the images, not their copies. The
    peaks contain the copies, since no partition can do without them.
    """
    memory = _simulate(gm, num_fwd_outputs, alias_copies=False)
    if images_converted:
        saved = _simulate(gm, num_fwd_outputs, alias_copies=True).saved_bytes
        memory = replace(memory, saved_bytes=saved)
    return memory


def _simulate(gm: GraphModule, num_fwd_outputs: int | None, alias_copies: bool) -> EagerMemory:
    """Return the memory of a graph; with `alias_copies`, copies of images need none."""
    order = list(gm.graph.nodes)
    pairs: dict[Node, list[tuple[int, int]]] = {}
    for n in order:
        copied = n.args[0] if alias_copies and _copies_image(n) else None
        pairs[n] = pairs[copied] if isinstance(copied, Node) else node_storages(n)
    size_of = dict(chain.from_iterable(pairs.values()))  # of storages, in bytes

    def storages(nodes: Iterable[object]) -> set[int]:
        return {key for n in nodes if isinstance(n, Node) for key, _ in pairs[n]}

    def nbytes(keys: Iterable[int]) -> int:
        return sum(size_of[s] for s in keys)

    outputs = tree_leaves(gm.graph.output_node().args)
    num_fwd_outputs = num_fwd_outputs or len(outputs)
    results = storages(outputs[:num_fwd_outputs])
    backward = backward_nodes(order)
    calls = _group_by_call([n for n in order if n not in backward])
    num_forward_calls = len(calls)
    calls += _group_by_call([n for n in order if n in backward])
    used = [storages(x for n in call for x in (n, *n.all_input_nodes)) for call in calls]
    last_use = {s: k for k, keys in enumerate(used) for s in keys}
    last_use |= dict.fromkeys(storages(outputs), len(calls))
    allocated = storages(n for n in order if n.op in ("placeholder", "get_attr"))
    live: set[int] = set()
    peaks, live_bytes, saved = [0, 0], 0, 0
    for k, keys in enumerate(used):
        if k == num_forward_calls:
            live -= results  # the caller holds them
            live_bytes = saved = peaks[1] = nbytes(live)
        new = {s for s in keys - allocated if last_use[s] > k}
        allocated |= new
        live |= new
        live_bytes += nbytes(new)
        phase = int(k >= num_forward_calls)
        peaks[phase] = max(peaks[phase], live_bytes)
        dead = {s for s in keys & live if last_use[s] <= k}
        live -= dead
        live_bytes -= nbytes(dead)
    return EagerMemory(peaks[0], saved, peaks[1], num_forward_outputs=num_fwd_outputs)


def _copies_image(node: Node) -> bool:
    """Return whether a node copies an image to channels last, or from there to the default."""
    if str(node.target) != "aten.clone.default" or not isinstance(node.args[0], Node):
        return False
    image, layout = node.args[0].meta.get("val"), node.kwargs.get("memory_format")
    if not isinstance(image, torch.Tensor) or image.dim() != 4:
        return False
    if layout is torch.contiguous_format:
        return image.is_contiguous(memory_format=torch.channels_last)
    return layout is torch.channels_last


def _group_by_call(order: Sequence[Node]) -> list[list[Node]]:
    """Group consecutive nodes that one call was decomposed into."""
    calls: list[list[Node]] = []
    previous: object = None
    for n in order:
        if n.op != "call_function":
            continue
        origin = str(n.meta.get("original_aten")), n.meta.get("seq_nr"), n.stack_trace
        is_whole_call = str(n.target) == origin[0] or "original_aten" not in n.meta
        if origin == previous and not is_whole_call:
            calls[-1].append(n)
        else:
            calls.append([n])
        previous = None if is_whole_call else origin
    return calls
