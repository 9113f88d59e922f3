"""Symbols of sizes and numbers that depend on data, while a program is traced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext

import sympy  # type: ignore[import-untyped]  # it ships no types
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from tofuse.torch_internals.dispatch import enable_python_dispatcher
from tofuse.torch_internals.fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

# What torch raises while it traces a program whose course depends on data.
DATA_DEPENDENCE_ERRORS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    UnsupportedOperatorException,
)


@contextmanager
def tracing_operators(mode: FakeTensorMode) -> Iterator[None]:
    """Run operators on fake tensors as AOTAutograd does: no composite one needs constant sizes."""
    with mode, torch.no_grad(), enable_python_dispatcher():
        yield


@contextmanager
def trying_operators(mode: FakeTensorMode) -> Iterator[None]:
    """Run operators on fake tensors; what they find out of sizes becomes no guard."""
    suppressed = mode.shape_env.suppress_guards() if mode.shape_env else nullcontext()
    with tracing_operators(mode), suppressed:
        yield


@contextmanager
def discard_new_symbols(mode: FakeTensorMode) -> Iterator[None]:
    """Run operators on fake tensors without a trace of the new symbols of their results."""
    env = mode.shape_env
    with tracing_operators(mode), env.ignore_fresh_unbacked_symbols() if env else nullcontext():
        yield


def deferred_checks(numbers: Iterable[object]) -> Iterator[tuple[sympy.Basic, str]]:
    """Yield the conditions on symbols that torch leaves to run time, and their messages."""
    envs = (x.node.shape_env for x in numbers if isinstance(x, (torch.SymInt, torch.SymFloat)))
    for env in dict.fromkeys(envs):
        for checks in list(env.deferred_runtime_asserts.values()):
            for check in checks:
                yield env.replace(check.expr), check.msg


def symbol_of_bool(value: torch.SymBool) -> torch.SymInt | None:
    """Return the integer that is 1 if a bool read from a tensor is true; None for other bools."""
    expr, env = value.node.expr, value.node.shape_env
    if not isinstance(expr, sympy.Eq) or expr.rhs != 1 or not isinstance(expr.lhs, sympy.Symbol):
        return None
    number = env.create_symintnode(expr.lhs, hint=None)
    return number if isinstance(number, torch.SymInt) else None
