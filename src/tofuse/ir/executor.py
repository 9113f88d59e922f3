"""Executor: a registered alternative to generated kernels and PyTorch that runs an operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

from tofuse.errors import TofuseError

KERNELS, LIBRARY = "llvm", "aten"  # the built-in executors
NO_EXECUTOR = "nothing"  # of a region whose result other regions have computed
TRITON = "triton"  # the report's name for KERNELS on a GPU


@dataclass(frozen=True)
class Tensor:
    """The type of an operand. A symbolic size is None; `dtype` is a name such as "float32"."""

    shape: tuple[int | None, ...]
    dtype: str
    device: str = "cpu"


@dataclass(frozen=True)
class Request:
    """An operator's full ATen name, such as "aten.mm.default", and its tensor operands."""

    target: str
    inputs: tuple[Tensor, ...]


def reject_nothing(request: Request) -> str | None:
    """Reject no call."""
    return None


CheckResult = Union[bool, str]  # noqa: UP007  (accepted, rejected, or the reason of a rejection)


@dataclass(frozen=True, eq=False)
class Executor:
    """A registered executor.

    `ops` are ATen names with or without an overload. `run` has the signature of the operator.
    `check` accepts or rejects a call, `cost` predicts its microseconds.
    """

    name: str
    ops: tuple[str, ...]
    run: Callable[..., object]
    check: Callable[[Request], CheckResult] | None = None
    cost: Callable[[Request], float] | None = None

    def lists(self, target: str) -> bool:
        """Return whether an ATen operator is among `ops`."""
        return target in self.ops or target.rpartition(".")[0] in self.ops

    def rejection(self, request: Request) -> str | None:
        """Return why the executor rejects a call that it lists; None if it accepts the call."""
        try:
            accepted = True if self.check is None else self.check(request)
        except Exception as e:
            if all(None not in t.shape for t in request.inputs):
                raise self._failed("check", request, e) from e
            return f"{self.name}'s check does not support symbolic sizes: {e}"
        if accepted is True:
            return None
        return f"{self.name} rejects it: {accepted}" if accepted else f"{self.name} rejects it"

    def cost_us(self, request: Request) -> float | None:
        """Return the predicted microseconds of a call; None if the executor has no `cost`."""
        if self.cost is None:
            return None
        try:
            us = float(self.cost(request))
            if not us >= 0:
                raise ValueError(f"{us} is not a number of microseconds")
        except Exception as e:
            raise self._failed("cost", request, e) from e
        return us

    def _failed(self, what: str, request: Request, error: Exception) -> TofuseError:
        shapes = ", ".join(f"{t.dtype}{list(t.shape)}" for t in request.inputs)
        return TofuseError(
            f"executor {self.name!r}: its {what} failed for {request.target}({shapes}): "
            f"{type(error).__name__}: {error}"
        )


@dataclass(frozen=True, eq=False)
class Executors:
    """Executors in order of preference. Built-in executors are represented by their names.

    `kernel_rejection` returns why our kernels must not compute a call that they support, or None.
    """

    order: tuple[Executor | str, ...] = (KERNELS, LIBRARY)
    kernel_rejection: Callable[[Request], str | None] = reject_nothing

    @property
    def allows_kernels(self) -> bool:
        """Whether generated kernels may be used."""
        return KERNELS in self.order

    @property
    def may_claim(self) -> bool:
        """Whether there are calls that our kernels may not get, although they support them."""
        rejects = self.kernel_rejection is not reject_nothing
        return rejects or not self.allows_kernels or bool(self.preceding(KERNELS))

    def preceding(self, name: str) -> tuple[Executor, ...]:
        """Return the registered executors that precede a built-in one."""
        end = self.order.index(name) if name in self.order else len(self.order)
        return tuple(e for e in self.order[:end] if isinstance(e, Executor))

    def claims(self, request: Request) -> bool:
        """Whether a call stays whole: our kernels reject it, or an earlier executor accepts it."""
        if not self.allows_kernels or self.kernel_rejection(request) is not None:
            return True
        executors = self.preceding(KERNELS)
        return any(e.lists(request.target) and e.rejection(request) is None for e in executors)

    def choose(self, request: Request, library_us: float) -> tuple[Executor | None, str]:
        """Return the executor of a call outside kernels (None for PyTorch) and the reason."""
        reasons: list[str] = []
        for e in self.preceding(LIBRARY):
            if not e.lists(request.target):
                continue
            reason = e.rejection(request)
            if reason is None and (us := e.cost_us(request)) is not None and us > library_us:
                reason = f"{e.name} predicts {us:.1f} us, PyTorch is predicted at {library_us:.1f}"
            if reason is None:
                return e, "; ".join([*reasons, f"{e.name} accepts {request.target}"])
            reasons.append(reason)
        if self.allows_kernels and (rejection := self.kernel_rejection(request)) is not None:
            reasons.append(rejection)
        return None, "; ".join(reasons)
