"""How a program runs on its compiled graphs: which results are views, saved or differentiable."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Union


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


@dataclass(frozen=True)
class TrainingRuntime:
    """How a program with a backward runs.

    The forward graph returns three groups: the new values of the arguments at the positions
    `mutated`, the results of the program, and values for the backward. `differentiable` says for
    each result of the program whether it has a gradient. The backward graph takes the forward's
    results at the positions `saved_sizes` and `saved_tensors`, then the gradients at the positions
    `tangents` among those of the differentiable results. Of its arguments it writes into those at
    the positions `written`. Those at `unchecked` may be written before it runs: the program keeps
    them as attributes of `ctx`, which autograd does not check.

    `requires_grad` has an entry for each argument. `non_parameters` are the positions of arguments
    that are not parameters of a module. A program is `pure` if its forward writes nothing and
    returns the same results for the same arguments, also after a backward.
    """

    mutated: tuple[int, ...]
    differentiable: tuple[bool, ...]
    saved_sizes: tuple[int, ...]
    saved_tensors: tuple[int, ...]
    tangents: tuple[int, ...]
    requires_grad: tuple[bool, ...]
    non_parameters: tuple[int, ...]
    pure: bool
    written: tuple[int, ...] = ()
    unchecked: tuple[int, ...] = ()

    @functools.cached_property
    def unchecked_results(self) -> list[int]:
        """The forward's results that the backward takes at the positions `unchecked`."""
        return [self.saved_tensors[k - len(self.saved_sizes)] for k in self.unchecked]

    @functools.cached_property
    def checked_results(self) -> list[int]:
        """The other saved tensors among the forward's results."""
        return [k for k in self.saved_tensors if k not in self.unchecked_results]


RuntimeKind = Union[InferenceRuntime, TrainingRuntime]  # noqa: UP007  (evaluated at run time)
