"""The free variables of a traced function: tensors that it reads beside its arguments."""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from inspect import getattr_static
from types import FrameType

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.fx import traceback as fx_traceback
from torch.overrides import TorchFunctionMode

from tofuse.capture.fx.aliases import METADATA_WRITERS, storage_id, written_arguments
from tofuse.capture.fx.location import is_library_file
from tofuse.capture.fx.node_tensors import target_name
from tofuse.capture.fx.overlap import overwrites_itself, overwrites_operand, reaches_beside
from tofuse.capture.pre_autograd.preserve_strides import call_preserving_strides
from tofuse.capture.trace.pytree import flatten, is_size
from tofuse.capture.trace.tensor_kinds import is_fake, is_traceable_type
from tofuse.errors import CaptureError, message_of
from tofuse.torch_internals.dispatch import has_saved_tensor_hooks
from tofuse.torch_internals.fake_tensors import FakeTensor, FakeTensorMode
from tofuse.torch_internals.memory import tensor_version, viewed_tensor
from tofuse.torch_internals.symbolic_shapes import DATA_DEPENDENCE_ERRORS
from tofuse.torch_internals.transforms import get_unwrapped, is_functorch_wrapped_tensor
from tofuse.torch_internals.trees import tree_leaves, tree_map

Function = Callable[..., object]


class SubstituteTensors(TorchFunctionMode):
    """A mode that replaces the free tensors of a function by traced ones.

    If a call returns one of its arguments, the function gets the real tensor, so that it stores no
    traced tensors. The mode also notes the user's line of each call, and
    replaces functions by those in the table `substitutes`.
    """

    def __init__(
        self,
        traced: Mapping[int, torch.Tensor],
        real: Mapping[int, torch.Tensor],
        substitutes: Mapping[Function, Function],
    ) -> None:
        super().__init__()
        self.traced, self.real = traced, real  # by id
        self.substitutes = substitutes

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
        if self.traced:
            args, kwargs = tree_map(
                lambda x: self.traced.get(id(x), x), (args, kwargs or {}), is_leaf=is_size
            )
        function = self.substitutes.get(func, func)
        result = call_preserving_strides(function, args, kwargs or {})
        return self.real.get(id(result), result)


class _FreeTensorRecorder(TorchFunctionMode):
    """A mode that records the real tensors among fake ones, which are free, and makes them fake."""

    def __init__(self, mode: FakeTensorMode, arguments: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.mode = mode
        self.free: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # real and fake, by id of real
        self.real: dict[int, torch.Tensor] = {}  # by id of fake
        self.outside = [(t, *_grad_version(t)) for t in arguments]
        self.unfolded: dict[int, torch.Tensor] = {}
        storages = Counter(_storage(t) for t in {id(t): t for t in arguments}.values())
        self.shared = {storage for storage, count in storages.items() if count > 1}
        self.written: set[int | None] = set()  # storages
        self.arguments = {_storage(t): t for t in arguments}
        self.beside: set[int | None] = set()  # storages in which `as_strided` leaves an argument

    def __torch_function__(
        self,
        func: Function,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        args, kwargs = tree_map(self._fake, (args, kwargs or {}), is_leaf=is_size)
        if func in GRAD_ACCESS and any(args[0] is fake for fake, *_ in self.outside):
            raise _NotPure("reads or changes .grad of a tensor from outside")
        name, written = target_name(func), _written_tensors(func, args, kwargs)
        first = [unwrapped(x) for x in args[:1] if isinstance(x, torch.Tensor)]
        if overwrites_itself(name, map(unwrapped, written), first):
            raise RuntimeError("it writes into a tensor that overlaps itself")
        if any(id(t) in self.unfolded for t in written):
            # AOTAutograd would zero the elements between windows
            raise RuntimeError("it writes into the windows of `unfold`")
        if written and _overwrites_operand(func, written, (*args, *kwargs.values())):
            raise RuntimeError("a call writes into elements that it also reads or writes elsewhere")
        self.written |= set(map(_storage, written))
        resizable = [
            t for t in tree_leaves((args[:1], kwargs.get("out"))) if isinstance(t, FakeTensor)
        ]
        sizes = [t.numel() for t in resizable]
        result = func(*args, **kwargs)
        self._reject_growth(resizable, sizes)
        if args and isinstance(result, torch.Tensor):
            self._record_unfold(name, args[0], result)
            if name == "as_strided":
                self._record_strided(result)
        return self.real.get(id(result), result)

    def _reject_growth(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> None:
        """Raise _NotPure if a tensor that others see has more elements than before a call.

        `resize_` and `out=` do that. A traced argument keeps its storage, and a traced view its
        shape.
        """
        for tensor, size in zip(tensors, sizes, strict=True):
            outside = any(tensor is t for t, *_ in self.outside)
            if tensor.numel() > size and (outside or viewed_tensor(tensor) is not None):
                raise _NotPure("enlarges an argument or a view")

    def _record_unfold(self, name: str, source: object, result: torch.Tensor) -> None:
        """Record the results of `unfold`, and views of them."""
        if not isinstance(source, torch.Tensor) or _storage(source) != _storage(result):
            return
        if name == "unfold" or id(source) in self.unfolded:
            self.unfolded[id(result)] = result

    def _record_strided(self, view: torch.Tensor) -> None:
        """Record the storage of a view that leaves its argument."""
        argument = self.arguments.get(_storage(view))
        if argument is not None and reaches_beside(unwrapped(view), unwrapped(argument)):
            self.beside.add(_storage(view))

    def _fake(self, x: object) -> object:
        if not isinstance(x, torch.Tensor) or is_fake(unwrapped(x)):
            return x
        if is_functorch_wrapped_tensor(x):
            raise CaptureError(
                "capture='trace' does not support torch.func transforms of free variables: a "
                f"transform takes a tensor of shape {tuple(unwrapped(x).shape)} that the program "
                "closes over; make it an argument of the program, or compile it without "
                "capture='trace'"
            )
        if not is_traceable_type(x):
            raise CaptureError(
                "capture='trace' cannot look into a tensor that the program closes over (a "
                f"parameter, a buffer or a variable): a {type(x).__name__} of shape "
                f"{tuple(x.shape)}; compile the program with capture='dynamo'"
            )
        if id(x) not in self.free:
            fake = self.mode.from_tensor(x)
            self.free[id(x)], self.real[id(fake)] = (x, fake), x
            self.outside.append((fake, *_grad_version(fake)))
        return self.free[id(x)][1]

    def check(self, result: object) -> None:
        """Raise _NotPure if the program changed a gradient, or cannot return its results.

        AOTAutograd loses the storage offset of a view of a written argument that shares memory with
        another argument. It also loses the gradient of values written through `detach`. Tensors
        inside an object would be fake.
        """
        detached = self.written - {_storage(t) for t, *_ in self.outside if t.requires_grad}
        detached &= {_storage(t) for t, *_ in self.outside}
        if any(_grad_version(t) != (grad, version) for t, grad, version in self.outside):
            raise _NotPure("adds to .grad of a tensor from outside (torch.autograd.grad is pure)")
        if self.beside & self.written:
            raise _NotPure("writes into memory that `as_strided` reaches beside an argument")
        for x in flatten(result)[0]:
            if isinstance(x, torch.Tensor) and _storage(x) in self.written & self.shared:
                raise _NotPure(
                    "returns memory of an argument that it writes, and that another argument shares"
                )
            if isinstance(x, torch.Tensor) and x.requires_grad and _storage(x) in detached:
                raise _NotPure("returns a detached view that it writes, and that requires grad")
            inside = tree_leaves(getattr(x, "__dict__", None))
            if not isinstance(x, torch.Tensor) and any(isinstance(v, FakeTensor) for v in inside):
                name = type(x).__name__
                raise _NotPure(
                    f"returns tensors inside a {name}, which is not registered with "
                    "pytree (return a tuple, list or dict)"
                )


class _NotPure(Exception):
    """An effect that a pure function cannot have; its text continues 'a program that ...'."""


def _grad_version(t: torch.Tensor) -> tuple[int, int]:
    """Return the id of a tensor's .grad, and how often that was changed."""
    grad = t.grad if t.is_leaf else None
    return (0, 0) if grad is None else (id(grad), tensor_version(grad))


def _written_tensors(
    func: Function, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> list[torch.Tensor]:
    """Return the tensors into whose memory a call writes."""
    if target_name(func) in METADATA_WRITERS:
        return []
    written = tree_leaves(written_arguments(func, args, kwargs))
    tensors = (t for t in written if isinstance(t, torch.Tensor))
    return [t for t in tensors if unwrapped(t).layout is torch.strided]


def _overwrites_operand(
    func: Function, written: Sequence[torch.Tensor], arguments: Sequence[object]
) -> bool:
    """Return whether a call writes into elements that it also reads or writes elsewhere."""

    def plain(x: object) -> object:
        return unwrapped(x) if isinstance(x, torch.Tensor) else x

    operands: Sequence[object] = tree_map(plain, arguments, is_leaf=is_size)
    return overwrites_operand(func.__name__, [unwrapped(t) for t in written], operands)


def _storage(x: torch.Tensor) -> int | None:
    """Return the id of a tensor's storage, or None for tensors without strides."""
    x = unwrapped(x)
    return storage_id(x) if x.layout is torch.strided else None


def unwrapped(x: torch.Tensor) -> torch.Tensor:
    """Return the tensor inside the wrappers of torch.func's transforms."""
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    return x


def find_free_tensors(function: Function, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors that `function(*tensors)` reads beside its arguments, in order of use.

    Raise CaptureError, with the user's line, if the control flow depends on data or the function
    fails on fake tensors.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = [mode.from_tensor(t) for t in tensors]
    recorder = _FreeTensorRecorder(mode, fake)
    hooked = has_saved_tensor_hooks()  # the caller's hooks must see no saved fake tensors
    hooks = saved_tensors_hooks(lambda x: x, lambda x: x) if hooked else nullcontext()
    try:
        with data_dependence_errors(), hooks, recorder, mode:
            result = function(*fake)
        recorder.check(result)
        return [real for real, _ in recorder.free.values()]
    except CaptureError:
        raise
    except _NotPure as error:
        raise CaptureError(_UNTRACEABLE.format(f" that {error}{_error_line(error)}")) from error
    except Exception as error:
        failure = error
    try:  # not inside the handler: the program's own error has no other one beside it
        function(*tensors)
        message = f"{_UNTRACEABLE.format(_error_line(failure))}: {message_of(failure)}"
        raise CaptureError(message) from failure
    finally:
        del failure  # it holds this frame


@contextmanager
def data_dependence_errors() -> Iterator[None]:
    """Convert tracing errors about data dependence to CaptureErrors with the user's line."""
    try:
        yield
    except DATA_DEPENDENCE_ERRORS as error:
        raise CaptureError(
            "capture='trace' cannot trace a program whose control flow or shapes depend on data"
            f"{_error_line(error)}; use torch.where, or compile it without capture='trace'"
        ) from error


def _error_line(error: BaseException) -> str:
    """Return the user's innermost line in the error's traceback, in parentheses; or nothing."""
    lines = traceback.extract_tb(error.__traceback__)
    user = [f for f in lines if not is_library_file(f.filename)]
    return f" ({user[-1].filename}:{user[-1].lineno}: {user[-1].line})" if user else ""


def _user_line(frame: FrameType | None) -> str | None:
    """Return the innermost frame outside torch and this package, as a traceback shows it."""
    while frame is not None and is_library_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return None
    return "".join(traceback.format_list(traceback.extract_stack(frame, limit=1)))


GRAD = getattr_static(torch.Tensor, "grad")
GRAD_ACCESS = (GRAD.__get__, GRAD.__set__, GRAD.__delete__)
_UNTRACEABLE = "capture='trace' cannot trace a program{}; compile it without capture='trace'"
