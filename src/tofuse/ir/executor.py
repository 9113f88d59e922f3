"""Executor: something other than our kernels and PyTorch that runs an operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

from tofuse.errors import TofuseError

KERNELS, LIBRARY = "llvm", "aten"  # the executors that are always there
NOTHING = "nothing"  # runs: other regions have done it
TRITON = "triton"  # what KERNELS, which stands for our kernels on any device, are on a GPU


@dataclass(frozen=True)
class Tensor:
    """The type of an operand: a size that is not known is None; a dtype as in "float32"."""

    shape: tuple[int | None, ...]
    dtype: str
    device: str = "cpu"


@dataclass(frozen=True)
class Request:
    """An operator by its full ATen name, such as "aten.mm.default", and its tensor operands."""

    target: str
    inputs: tuple[Tensor, ...]


Answer = Union[bool, str]  # noqa: UP007  (yes; no; or no, and why)


@dataclass(frozen=True, eq=False)
class Executor:
    """`run` takes what the operator takes and returns what it returns; `cost` is microseconds.

    `ops` are ATen names with or without an overload.
    """

    name: str
    ops: tuple[str, ...]
    run: Callable[..., object]
    check: Callable[[Request], Answer] | None = None
    cost: Callable[[Request], float] | None = None

    def refusal(self, request: Request) -> str | None:
        """Why it does not take a call; None where it does."""
        if request.target not in self.ops and request.target.rpartition(".")[0] not in self.ops:
            return f"{self.name} does not list {request.target}"
        try:
            answer = True if self.check is None else self.check(request)
        except Exception as e:
            if all(None not in t.shape for t in request.inputs):
                raise self._failed("check", request, e) from e
            return f"{self.name}'s check does not take unknown sizes: {e}"
        if answer is True:
            return None
        return f"{self.name} refuses: {answer}" if answer else f"{self.name} refuses"

    def price(self, request: Request) -> float | None:
        """Microseconds of a call; None where it does not say."""
        if self.cost is None:
            return None
        try:
            us = float(self.cost(request))
            if not us >= 0:
                raise ValueError(f"{us} is no number of microseconds")
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
    """Executors in order of preference; the names of those built in stand for themselves."""

    order: tuple[Executor | str, ...] = (KERNELS, LIBRARY)

    @property
    def kernels(self) -> bool:
        """Whether our own kernels may run anything."""
        return KERNELS in self.order

    def before(self, name: str) -> tuple[Executor, ...]:
        """The registered executors that come before a built-in one."""
        end = self.order.index(name) if name in self.order else len(self.order)
        return tuple(e for e in self.order[:end] if isinstance(e, Executor))

    def claims(self, request: Request) -> bool:
        """Whether a call is kept whole, because someone takes it before our kernels do."""
        if not self.kernels:
            return True
        return any(e.refusal(request) is None for e in self.before(KERNELS))

    def choose(self, request: Request, library_us: float) -> tuple[Executor | None, str]:
        """Who runs a call that is no kernel, None for PyTorch, and why."""
        reasons: list[str] = []
        for e in self.before(LIBRARY):
            reason = e.refusal(request)
            if reason is None and (us := e.price(request)) is not None and us > library_us:
                reason = f"{e.name} says {us:.4g} us, PyTorch is expected to take {library_us:.4g}"
            if reason is None:
                return e, "; ".join([*reasons, f"{e.name} takes {request.target}"])
            if "does not list" not in reason:
                reasons.append(reason)
        return None, "; ".join(reasons)
