"""What a traced function reads beside its arguments, and the user's line behind each operation."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from tofuse.capture.fx.mutation import writes_by_name
from tofuse.capture.fx.node_tensors import memory
from tofuse.capture.fx.overlap import overlaps_itself
from tofuse.capture.trace.pytree import flatten, is_size
from tofuse.config import PACKAGE
from tofuse.errors import CaptureError

Function = Callable[..., object]
_TORCH, _OURS = str(Path(torch.__file__).parent), str(PACKAGE)


class Substitute(TorchFunctionMode):
    """Puts traced tensors in the place of real ones that a function has closed over.

    Where a call gives one back that it was given, the function gets the real one again, so that
    whatever it keeps is no traced tensor.
    """

    def __init__(self, by_identity: Mapping[int, torch.Tensor], real: Mapping[int, torch.Tensor]):
        super().__init__()
        self.by_identity, self.real = by_identity, real

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
            args, kwargs = tree_map(self._traced, (args, kwargs or {}), is_leaf=is_size)
        result = func(*args, **(kwargs or {}))
        return self.real.get(id(result), result)

    def _traced(self, x: object) -> object:
        return self.by_identity.get(id(x), x)


class _Closed(TorchFunctionMode):
    """Notes the real tensors among fake ones, which only a closure brings, and makes them fake."""

    def __init__(self, mode: FakeTensorMode, given: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.mode = mode
        self.found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.real: dict[int, torch.Tensor] = {}
        self.outside = [(t, *_gradient(t)) for t in given]
        self.windows: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        args, kwargs = tree_map(self._fake, (args, kwargs or {}), is_leaf=is_size)
        if func in GRADIENT and any(args[0] is fake for fake, *_ in self.outside):
            raise _Unfollowed("reads or changes .grad of a tensor from outside")
        written = _written(func, args)
        if written is not None and overlaps_itself(innermost(written)):
            raise RuntimeError("it writes into a tensor that overlaps itself")
        if id(written) in self.windows:  # AOTAutograd zeroes what lies between them
            raise RuntimeError("it writes into windows of a tensor")
        result = func(*args, **kwargs)
        if args and isinstance(result, torch.Tensor):
            self._note_windows(func, args[0], result)
        return self.real.get(id(result), result)

    def _note_windows(self, func: Function, source: object, result: torch.Tensor) -> None:
        """Remember the results of `unfold`, and views of them."""
        if not isinstance(source, torch.Tensor) or _place(source) != _place(result):
            return
        if getattr(func, "__name__", "") == "unfold" or id(source) in self.windows:
            self.windows[id(result)] = result

    def _fake(self, x: object) -> object:
        if not isinstance(x, torch.Tensor) or isinstance(innermost(x), FakeTensor):
            return x
        if is_functorch_wrapped_tensor(x):
            raise CaptureError(
                "capture='trace' cannot see into torch.func: a transform in the program takes a "
                f"tensor of shape {tuple(innermost(x).shape)} that the program closes over; make "
                "it an argument of the program, or compile it without capture='trace'"
            )
        if id(x) not in self.found:
            fake = self.mode.from_tensor(x)
            self.found[id(x)], self.real[id(fake)] = (x, fake), x
            self.outside.append((fake, *_gradient(fake)))
        return self.found[id(x)][1]

    def check(self, result: object) -> None:
        """Raise where a program leaves more behind than its results, or hides tensors in them."""
        if any(_gradient(t) != (grad, version) for t, grad, version in self.outside):
            raise _Unfollowed(
                "adds to .grad of a tensor from outside (torch.autograd.grad is pure)"
            )
        for x in flatten(result)[0]:
            held = tree_leaves(getattr(x, "__dict__", None))
            if not isinstance(x, torch.Tensor) and any(isinstance(v, FakeTensor) for v in held):
                name = type(x).__name__
                raise _Unfollowed(
                    f"returns tensors inside of a {name}, which torch.utils._pytree does not know "
                    "(a tuple, list or dict it does)"
                )


class _Unfollowed(Exception):
    """What a program does that a pure function cannot; its text goes on 'a program that ...'."""


def _gradient(t: torch.Tensor) -> tuple[int, int]:
    """Which tensor its .grad is, and how often it was changed."""
    grad = t.grad if t.is_leaf else None
    return (0, 0) if grad is None else (id(grad), grad._version)


def _written(func: Function, args: tuple[object, ...]) -> torch.Tensor | None:
    """The tensor that a call writes into."""
    name = getattr(func, "__name__", "")
    if name in METADATA or not writes_by_name(name):
        return None
    if not args or not isinstance(args[0], torch.Tensor):
        return None
    return args[0] if innermost(args[0]).layout is torch.strided else None


def _unhooked() -> AbstractContextManager[object]:
    """What autograd would keep of stand-ins is no business of the caller's hooks."""
    hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    return saved_tensors_hooks(lambda x: x, lambda x: x) if hooked else nullcontext()


def _place(x: torch.Tensor) -> int | None:
    """The same number for tensors that share memory; None for those without strides."""
    x = innermost(x)
    return memory(x) if x.layout is torch.strided else None


def innermost(x: torch.Tensor) -> torch.Tensor:
    """What is inside the wrappers of torch.func's transforms."""
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    return x


def closed_over(function: Function, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that `function(*tensors)` reads beside its arguments, as it meets them.

    CaptureError, with the user's line, where the way through the function depends on data, or
    where stand-ins for tensors do not take it.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = [mode.from_tensor(t) for t in tensors]
    closed = _Closed(mode, fake)
    try:
        with data_errors(), _unhooked(), closed, mode:
            result = function(*fake)
        closed.check(result)
    except CaptureError:
        raise
    except _Unfollowed as error:
        raise CaptureError(
            f"capture='trace' cannot follow a program that {error}{_own_line(error)}; "
            "compile it without capture='trace'"
        ) from error
    except Exception as error:
        function(*tensors)  # the program's own error, in eager's words
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CaptureError(
            f"capture='trace' cannot follow a program{_own_line(error)}: {first}; "
            "compile it without capture='trace'"
        ) from error
    return [real for real, _ in closed.found.values()]


@contextmanager
def data_errors() -> Iterator[None]:
    """Errors of tracing that come from data, as CaptureErrors that name the user's line."""
    try:
        yield
    except DATA_ERRORS as error:
        raise CaptureError(
            "capture='trace' cannot follow a program whose way or shapes depend on data"
            f"{_own_line(error)}; use torch.where, or compile it without capture='trace'"
        ) from error


def _own_line(error: BaseException) -> str:
    """The user's innermost line that an error came through, in parentheses; or nothing."""
    lines = traceback.extract_tb(error.__traceback__)
    own = [f for f in lines if not f.filename.startswith((_TORCH, _OURS))]
    return f" ({own[-1].filename}:{own[-1].lineno}: {own[-1].line})" if own else ""


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
GRAD = vars(torch._C.TensorBase)["grad"]
GRADIENT = (GRAD.__get__, GRAD.__set__, GRAD.__delete__)
METADATA = frozenset(
    ("as_strided_", "detach_", "requires_grad_", "resize_", "resize_as_", "set_", "squeeze_")
) | frozenset(("swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"))
