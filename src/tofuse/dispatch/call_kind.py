"""Kinds of calls: what their arguments have in common, as a key, and as a guard."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from keyword import iskeyword

import torch
from torch import get_num_threads, is_grad_enabled

from tofuse.dispatch.dispatcher import never
from tofuse.torch_internals.dispatch import TensorGuards

SIMPLE = (bool, int, float, str, type(None))
PLAIN = (torch.Tensor, torch.nn.Parameter)


def kind_of_call(args: Sequence[object], kwargs: Mapping[str, object]) -> Hashable:
    """Return the grad mode, the types and layouts of tensors, and the values of other arguments.

    Return None if an argument is anything but a plain CPU tensor, a number, a text or None.
    """
    kind: list[Hashable] = [is_grad_enabled(), len(args)]
    tensors: list[int] = []
    for argument in (*args, *kwargs, *kwargs.values()):
        if isinstance(argument, torch.Tensor):
            if not is_plain_tensor(argument):
                return None
            tensors.append(id(argument))
            layout = argument.shape, argument.stride(), argument.dtype, argument.requires_grad
            kind.append((tensors.index(id(argument)), *layout))
        elif type(argument) in SIMPLE:
            kind.append((type(argument), argument))
        else:
            return None
    return tuple(kind)


def is_plain_tensor(x: torch.Tensor) -> bool:
    """Whether a tensor is dense, on the CPU, and of no subclass but a parameter."""
    is_plain = type(x) in PLAIN and x.is_cpu and not x.is_nested
    return is_plain and x.layout is torch.strided


def guard_of_call(
    args: Sequence[object], kwargs: Mapping[str, object], mode: Callable[[], object]
) -> Callable[..., bool]:
    """Return a guard for calls of one kind in the mode and with the number of threads of now.

    It compares tensors in C++. It accepts other numbers and texts only if they are the same
    objects, and no call if an argument has a name that cannot be written, or is a tensor twice.
    For other arguments in number or name, it raises TypeError.
    """
    values = {**{f"_argument{k}": v for k, v in enumerate(args)}, **kwargs}
    tensors = {name: v for name, v in values.items() if isinstance(v, torch.Tensor)}
    names = all(n.isidentifier() and not n.startswith("_") and not iskeyword(n) for n in kwargs)
    if not names or len(set(map(id, tensors.values()))) < len(tensors):
        return never
    check = TensorGuards(
        *tensors.values(), dynamic_dims_sizes=None, dynamic_dims_strides=None
    ).check
    tests = [f"{n} is _{n}" for n in values if n not in tensors]
    # names that no argument has: one does not begin with "_"
    tests += [f"__check({', '.join(tensors)})", "__mode() == __now", "__threads() == __count"]
    parameters = [*list(values)[: len(args)], *(["*", *kwargs] if kwargs else [])]
    scope = {f"_{n}": v for n, v in values.items() if n not in tensors}  # keeps no tensor alive
    scope |= {"__check": check, "__mode": mode, "__now": mode()}
    scope |= {"__threads": get_num_threads, "__count": get_num_threads()}
    # a function for these arguments takes less time than a loop over them
    exec(f"def same({', '.join(parameters)}): return {' and '.join(tests)}", scope)
    return scope["same"]  # type: ignore[return-value]  # what `exec` defines
