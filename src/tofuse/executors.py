"""The registry of executors, and the order in which a compilation asks them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from tofuse.config import Config
from tofuse.errors import OptionError
from tofuse.ir.executor import KERNELS, LIBRARY, TRITON, Answer, Executor, Executors, Request
from tofuse.ops.reference_names import is_known, nearest

_registered: dict[str, Executor] = {}


def register_executor(
    name: str,
    *,
    ops: Sequence[str],
    run: Callable[..., object],
    check: Callable[[Request], Answer] | None = None,
    cost: Callable[[Request], float] | None = None,
) -> None:
    """Make an executor known, so that the option `executors` may name it.

    `ops` are the ATen operators it takes, such as "aten.mm" or "aten._softmax.default"; one that
    stands before "llvm" gets them whole, even those that are otherwise taken apart and fused.
    `run` is called with the operator's own arguments and returns new tensors of the types the
    operator would. `check(request)` says by True whether it takes operands of these types, and
    may answer with the reason why not. `cost(request)` is what it takes in microseconds: where
    that is above the prediction for PyTorch, it is passed over.

    Raises OptionError for a name that is taken or that no option could hold, for no operators
    and for what is not callable.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise OptionError(f"an executor's name is an identifier, not {name!r}")
    if name in (KERNELS, LIBRARY, TRITON) or name in _registered:
        raise OptionError(
            f"there is an executor {name!r} already; unregister_executor({name!r}) removes one "
            "of your own"
        )
    if isinstance(ops, str) or not ops or not all(_is_operator(op) for op in ops):
        raise OptionError(
            f"executor {name!r}: ops are names of operators such as 'aten.mm', not {ops!r}"
        )
    for op in ops:
        if not is_known(op):
            near = nearest(op)
            hint = f"; did you mean {near!r}?" if near else ""
            raise OptionError(f"executor {name!r}: PyTorch has no operator {op!r}{hint}")
    for what, given in (("run", run), ("check", check or bool), ("cost", cost or float)):
        if not callable(given):
            raise OptionError(f"executor {name!r}: {what} is a function, not {given!r}")
    _registered[name] = Executor(name, tuple(ops), run, check, cost)


def unregister_executor(name: str) -> None:
    """Forget an executor; what is compiled keeps it. Raises OptionError for an unknown one."""
    if name not in _registered:
        raise OptionError(f"there is no registered executor {name!r}")
    del _registered[name]


def executors_of(config: Config) -> Executors:
    """The executors a configuration names; raises OptionError for one that nobody registered.

    PyTorch comes last where it is not named: it runs what nobody else does.
    """
    found: list[Executor | str] = []
    for name in config.executors:
        if name not in (KERNELS, LIBRARY) and name not in _registered:
            known = [KERNELS, LIBRARY, *_registered]
            if name == TRITON:
                raise OptionError(f"{KERNELS!r} stands for our kernels on every device, {name} too")
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise OptionError(f"there is no executor {name!r}; {hint}")
        found.append(_registered.get(name, name))
    if len(set(config.executors)) != len(found):
        raise OptionError(f"an executor is named twice in {', '.join(config.executors)}")
    return Executors((*found, *([] if LIBRARY in found else [LIBRARY])))


def _is_operator(op: object) -> bool:
    return isinstance(op, str) and len(op.split(".")) in (2, 3) and all(op.split("."))
