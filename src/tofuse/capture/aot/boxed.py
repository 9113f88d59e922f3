"""Boxed functions, which take all arguments in one list that they may empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Union

import torch

BoxedFunction = Callable[[list[object]], list[torch.Tensor]]
Results = Union[torch.Tensor, Sequence[torch.Tensor]]  # noqa: UP007  (evaluated at run time)
