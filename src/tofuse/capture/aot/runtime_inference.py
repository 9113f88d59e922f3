"""The runtime of a program without a backward: a call of its inference graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.autograd.graph import increment_version

from tofuse.capture.aot.boxed import BoxedFunction, Results
from tofuse.torch_internals.autograd_compiler import OutputType, ViewAndMutationMeta


@dataclass(frozen=True)
class InferenceRuntime:
    """How a program without a backward runs.

    `argument_views`: for each result, whether it is a view of an argument. `disables_grad`: an
    argument requires grad, so PyTorch's operators would record a backward. `mutated`: positions of
    arguments whose writes count for autograd. `returned`: for each result, the position of the
    argument that it is, or None.
    """

    argument_views: tuple[bool, ...]
    disables_grad: bool
    mutated: tuple[int, ...]
    returned: tuple[int | None, ...]

    def make_program(
        self, forward: BoxedFunction, backward: object = None, eager: object = None
    ) -> Callable[..., Results]:
        """Return the program, which returns its results in a list."""

        def plain(*tensors: torch.Tensor) -> Results:
            return forward([*tensors])

        mutated, returns_views = self.mutated, any(self.argument_views)

        def without_grad(*tensors: torch.Tensor) -> Results:
            with torch.no_grad():
                if mutated:
                    increment_version([tensors[k] for k in mutated])
                results = forward([*tensors])
                if not returns_views:
                    return results
                # a plan returns the argument itself for a view of all of it
                kinds = zip(results, self.argument_views, self.returned, strict=False)
                return [
                    tensors[k] if k is not None else t.detach() if is_view else t
                    for t, is_view, k in kinds
                ]

        return without_grad if self.disables_grad or mutated or returns_views else plain


def inference_runtime(
    meta: ViewAndMutationMeta, arguments: Sequence[object]
) -> InferenceRuntime | None:
    """Return the runtime of an inference graph, or None if it needs AOTAutograd's wrappers.

    It needs them if the graph does not do all writes itself, or if a result requires grad: then
    results are views of arguments.
    """
    if meta.mutated_inp_runtime_indices or any(i.mutates_metadata for i in meta.input_info):
        return None
    if any(o.requires_grad for o in meta.output_info):
        return None
    requires_grad = any(isinstance(t, torch.Tensor) and t.requires_grad for t in arguments)
    of_argument = (o.output_type is OutputType.alias_of_input for o in meta.output_info)
    mutated = tuple(meta.mutated_graph_handled_indices_seen_by_autograd)
    returned = (
        o.base_idx if o.output_type is OutputType.is_input else None for o in meta.output_info
    )
    return InferenceRuntime(tuple(of_argument), requires_grad, mutated, tuple(returned))
