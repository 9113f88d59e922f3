"""Register executors, and resolve the option `executors`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tofuse.config import Config
from tofuse.errors import OptionError, did_you_mean
from tofuse.ir.executor import (
    KERNELS,
    LIBRARY,
    TRITON,
    CheckResult,
    Executor,
    Executors,
    Request,
    reject_nothing,
)
from tofuse.ops.half_precision import reject_other_rounding
from tofuse.ops.operator_names import is_operator, nearest_operator

_registered: dict[str, Executor] = {}


def register_executor(
    name: str,
    *,
    ops: Sequence[str],
    run: Callable[..., object],
    check: Callable[[Request], CheckResult] | None = None,
    cost: Callable[[Request], float] | None = None,
) -> None:
    """Register an executor under a name for the option `executors`.

    `ops` are the ATen operators it supports, such as "aten.mm" or "aten._softmax.default". An
    executor before "llvm" receives them undecomposed.
    `run` is called with the operator's arguments and returns new tensors of the operator's result
    types. `check(request)` returns True to accept operands of these types; to reject them, it
    returns False or the reason. `cost(request)` returns the predicted microseconds: if they
    exceed the prediction for PyTorch, the next executor is tried.

    Raises OptionError if the name is registered or not an identifier, if `ops` is empty or names
    an unknown operator, and if an argument is not callable.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise OptionError(f"the name of an executor must be an identifier, not {name!r}")
    if name in (KERNELS, LIBRARY, TRITON) or name in _registered:
        raise OptionError(
            f"the executor {name!r} already exists; unregister_executor({name!r}) removes a "
            "registered one"
        )
    if isinstance(ops, str) or not ops or not all(_is_operator_name(op) for op in ops):
        raise OptionError(
            f"executor {name!r}: ops must be names of operators such as 'aten.mm', not {ops!r}"
        )
    for op in ops:
        if not is_operator(op):
            near = nearest_operator(op)
            hint = f"; did you mean {near!r}?" if near else ""
            raise OptionError(f"executor {name!r}: PyTorch has no operator {op!r}{hint}")
    for argument, value in (("run", run), ("check", check or bool), ("cost", cost or float)):
        if not callable(value):
            raise OptionError(f"executor {name!r}: {argument} must be a function, not {value!r}")
    _registered[name] = Executor(name, tuple(ops), run, check, cost)


def unregister_executor(name: str) -> None:
    """Remove an executor from the registry. Compiled programs keep using it.

    Raises OptionError if it is not registered.
    """
    if name not in _registered:
        raise OptionError(f"there is no registered executor {name!r}")
    del _registered[name]


def executors_of(config: Config) -> Executors:
    """Return the executors of a configuration. Raises OptionError for an unregistered name.

    PyTorch is added at the end if it is not named. Under precision="eager", our kernels reject
    calls that they would round otherwise than PyTorch.
    """
    executors: list[Executor | str] = []
    for name in config.executors:
        if name not in (KERNELS, LIBRARY) and name not in _registered:
            known = [KERNELS, LIBRARY, *_registered]
            if name == TRITON:
                raise OptionError(
                    f"there is no executor {name!r}; {KERNELS!r} means our kernels on every device"
                )
            hint = did_you_mean(name, known, f"executors are {', '.join(known)}")
            raise OptionError(f"there is no executor {name!r}{hint}")
        executors.append(_registered.get(name, name))
    if len(set(config.executors)) != len(executors):
        raise OptionError(f"an executor is repeated in {', '.join(config.executors)}")
    order = (*executors, *([] if LIBRARY in executors else [LIBRARY]))
    return Executors(order, reject_other_rounding if config.rounds_as_eager else reject_nothing)


def _is_operator_name(op: object) -> bool:
    return isinstance(op, str) and len(op.split(".")) in (2, 3) and all(op.split("."))
