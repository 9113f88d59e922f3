"""What a traced function reads beside its arguments, and the user's line behind each operation."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from tofuse.errors import CaptureError

Function = Callable[..., object]
_TORCH, _OURS = str(Path(torch.__file__).parent), str(Path(__file__).parent.parent)


class Substitute(TorchFunctionMode):
    """Puts traced tensors in the place of real ones that a function has closed over."""

    def __init__(self, by_identity: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self.by_identity = by_identity

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        line = _user_line(sys._getframe(1))
        if line is not None:
            fx_traceback.set_stack_trace([line])
        if self.by_identity:
            args, kwargs = tree_map(self._traced, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _traced(self, x: object) -> object:
        return self.by_identity.get(id(x), x)


class _Closed(TorchFunctionMode):
    """Notes the real tensors among fake ones, which only a closure brings, and makes them fake."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.mode = mode
        self.found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        args, kwargs = tree_map(self._fake, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _fake(self, x: object) -> object:
        if not isinstance(x, torch.Tensor) or isinstance(x, FakeTensor):
            return x
        if id(x) not in self.found:
            self.found[id(x)] = (x, self.mode.from_tensor(x))
        return self.found[id(x)][1]


def closed_over(function: Function, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that `function(*tensors)` reads beside its arguments, as it meets them.

    CaptureError, with the user's line, where the way through the function depends on data.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = [mode.from_tensor(t) for t in tensors]
    closed = _Closed(mode)
    try:
        with data_errors(), closed, mode:
            function(*fake)
    except CaptureError:
        raise
    except Exception:
        function(*tensors)  # the program's own error, in eager's words
        raise
    return [real for real, _ in closed.found.values()]


@contextmanager
def data_errors() -> Iterator[None]:
    """Errors of tracing that come from data, as CaptureErrors that name the user's line."""
    try:
        yield
    except DATA_ERRORS as error:
        lines = traceback.extract_tb(error.__traceback__)
        own = [f for f in lines if not f.filename.startswith((_TORCH, _OURS))]
        where = f" ({own[-1].filename}:{own[-1].lineno}: {own[-1].line})" if own else ""
        raise CaptureError(
            f"capture='trace' cannot follow a program whose way or shapes depend on data{where}; "
            "use torch.where, or compile it without capture='trace'"
        ) from error


def _user_line(frame: FrameType | None) -> str | None:
    """The innermost frame outside torch and this package, as a traceback shows it."""
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _OURS)):
        frame = frame.f_back
    if frame is None:
        return None
    return "".join(traceback.format_list(traceback.extract_stack(frame, limit=1)))


DATA_ERRORS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    UnsupportedOperatorException,
)
