"""Hand back: the calls that eager runs anyway run without Dynamo's guards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import ParamSpec, TypeVar

import torch
from torch import get_num_threads, is_grad_enabled
from torch.compiler import is_dynamo_compiling

from tofuse.capture.dynamo.graph_breaks import num_graph_breaks
from tofuse.torch_internals.dispatch import TensorGuards
from tofuse.torch_internals.dynamo_guards import GlobalStateGuard

P = ParamSpec("P")
R = TypeVar("R")
SIMPLE = (bool, int, float, str, type(None))
PLAIN = (torch.Tensor, torch.nn.Parameter)
MAX_KINDS = 256  # of calls that are handed back


# A function that compares the arguments of a call with those of an earlier one, and raises
# TypeError for others in number or name; the mode; the number of threads. It is a plain tuple
# because that takes less time to unpack than a named one.
CallGuard = tuple[Callable[..., bool], object, int]
NO_CALL: CallGuard = (lambda *args, **kwargs: False, False, 0)


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of call that is handed back: its guard, and whether torch's state is the same.

    The guard accepts other numbers and texts only if they are the same objects. `same_state`
    compares all that Dynamo compares, such as the dtypes of autocast.
    """

    guard: CallGuard
    same_state: Callable[[], bool]


class Calls(threading.local):
    """How many programs eager has run in calls of this thread."""

    in_eager = 0


@dataclass(eq=False)
class HandBack:
    """The kinds of calls of one compiled function that eager runs, and facts of its programs.

    `mode` is what a kind has beside the arguments: the grad mode, and whether a module trains.
    `programs` counts the programs. A function is `partial` if a graph break divides it, so that a
    call may run several; `runs_compiled` if some calls of a program run compiled.
    """

    kinds: dict[Hashable, Kind] = field(default_factory=dict)
    mode: Callable[[], object] = is_grad_enabled
    programs: int = 0
    partial: bool = False
    runs_compiled: bool = False
    calls: Calls = field(default_factory=Calls)

    def add(self, in_eager: int, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Hand back the kind of a call if eager ran all of its programs; it ran `in_eager`."""
        self.partial |= in_eager > 1
        if (self.partial and self.runs_compiled) or len(self.kinds) >= MAX_KINDS:
            return
        if kind_of_call(args, kwargs) is not None:
            guard = _same_arguments(args, kwargs), self.mode(), get_num_threads()
            self.kinds[self.kind(args, kwargs)] = Kind(guard, GlobalStateGuard().check)

    def kind(self, args: Sequence[object], kwargs: Mapping[str, object]) -> Hashable:
        """Return the kind of a call in the mode of now."""
        return self.mode(), kind_of_call(args, kwargs)


def hand_back(
    compiled: Callable[P, R], original: Callable[P, R], record: HandBack
) -> Callable[P, R]:
    """Return a function that runs `compiled`, or `original` for calls that eager runs anyway.

    A call is handed back if eager ran all programs of an earlier call of its kind: the results are
    the same, and Dynamo's guards are not run. A function in which graph
    breaks leave nothing to compile is handed back, too.

    The arguments are compared with those of the last call that was handed back. Only if they are
    of another kind, the kind is looked up, which takes longer.
    """
    last, mode_now = NO_CALL, record.mode

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal last
        if is_dynamo_compiling():
            return compiled(*args, **kwargs)
        same_arguments, mode, threads = last
        try:
            is_same = same_arguments(*args, **kwargs) if kwargs else same_arguments(*args)
        except TypeError:
            is_same = False
        if is_same and mode_now() == mode and get_num_threads() == threads:
            if not kwargs:
                return original(*args)  # type: ignore[call-arg]  # there are no others
            return original(*args, **kwargs)
        found = record.kinds.get(record.kind(args, kwargs)) if record.kinds else None
        if found is not None and found.same_state():
            last = found.guard
            return original(*args, **kwargs)
        in_eager, programs = record.calls.in_eager, record.programs
        breaks = 0 if programs else num_graph_breaks()
        result = compiled(*args, **kwargs)
        if not programs and num_graph_breaks() > breaks:
            record.partial = True
        in_eager = record.calls.in_eager - in_eager
        if in_eager or (record.partial and not record.programs):
            record.add(in_eager, args, kwargs)
        return result

    return call


def kind_of_call(args: Sequence[object], kwargs: Mapping[str, object]) -> Hashable:
    """Return the grad mode, the types and layouts of tensors, and the values of other arguments.

    Return None if an argument is anything but a plain CPU tensor, a number, a text or None.
    """
    kind: list[Hashable] = [is_grad_enabled()]
    tensors: list[int] = []
    for argument in (*args, *kwargs, *kwargs.values()):
        if isinstance(argument, torch.Tensor):
            is_plain = type(argument) in PLAIN and argument.is_cpu and not argument.is_nested
            if not is_plain or argument.layout is not torch.strided:
                return None
            tensors.append(id(argument))
            layout = argument.shape, argument.stride(), argument.dtype, argument.requires_grad
            kind.append((tensors.index(id(argument)), *layout))
        elif isinstance(argument, SIMPLE):
            kind.append((type(argument), argument))
        else:
            return None
    return tuple(kind)


def _same_arguments(args: Sequence[object], kwargs: Mapping[str, object]) -> Callable[..., bool]:
    """Return a function that compares calls with one, in C++ if it has tensors alone.

    It accepts none if an argument has a name that cannot be written, or is a tensor twice.
    """
    values = {**{f"_argument{k}": v for k, v in enumerate(args)}, **kwargs}
    tensors = {name: v for name, v in values.items() if isinstance(v, torch.Tensor)}
    names = all(n.isidentifier() and not n.startswith("_") and not iskeyword(n) for n in kwargs)
    if not names or len(set(map(id, tensors.values()))) < len(tensors):
        return NO_CALL[0]
    check = TensorGuards(
        *tensors.values(), dynamic_dims_sizes=None, dynamic_dims_strides=None
    ).check
    if len(tensors) == len(args) and not kwargs:
        return check
    tests = [f"{n} is _{n}" for n in values if n not in tensors]
    tests.append(f"_({', '.join(tensors)})")
    parameters = [*list(values)[: len(args)], *(["*", *kwargs] if kwargs else [])]
    scope = {"_": check, **{f"_{n}": v for n, v in values.items()}}
    for name in tensors:
        del scope[f"_{name}"]  # the guard keeps no tensor alive
    # a function for these arguments takes less time than a loop over them
    exec(f"def same({', '.join(parameters)}): return {' and '.join(tests)}", scope)
    return scope["same"]  # type: ignore[return-value]  # what `exec` defines
