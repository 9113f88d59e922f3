"""The types of compiled functions and their results.

Boxed functions take all arguments in one list that they may empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

import torch

CompiledFunction = Callable[..., object]  # what a backend returns to Dynamo
BoxedFunction = Callable[[list[object]], list[torch.Tensor]]
Results = Union[torch.Tensor, Sequence[torch.Tensor]]  # noqa: UP007  (evaluated at run time)
# (runtime kind, forward, backward, eager program or None) -> the program on flat arguments
ProgramMaker = Callable[..., Callable[..., Results]]
