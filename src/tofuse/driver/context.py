"""The compile context: the options of one call of `tofuse.compile`, and what follows from them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch.fx import GraphModule

from tofuse.backends.code_library import CodeLibrary
from tofuse.backends.cpu.llvm.load import CODE, host_target
from tofuse.backends.cpu.runtime.launch import find_vector_library
from tofuse.capture.dynamo.capture_errors import OUT_OF_MEMORY
from tofuse.capture.fx.location import source_location
from tofuse.capture.lower.executor_claims import ClaimPredicate, claim_nothing
from tofuse.config import Config
from tofuse.cost.machine_source import check_machine
from tofuse.errors import (
    CompileError,
    OptionError,
    TofuseError,
    TofuseWarning,
    first_line,
    message_of,
)
from tofuse.executors import executors_of
from tofuse.ir.executor import Request
from tofuse.ir.schedule import Target


@dataclass(frozen=True, eq=False)
class CompileContext:
    """The options of one call of `tofuse.compile`, and what follows from them.

    `claims` are the calls that capture must not decompose. `target` returns the processor to
    generate code for, from the number of threads, which is torch's at the time of each compilation;
    `library` compiles its text. With `explains`, each graph is compiled, because its report is
    wanted; with `timed`, a clock times the steps of its plan. With `capture_only`, programs are
    compiled with their backward, and calling one raises `Captured`.
    """

    config: Config
    claims: ClaimPredicate
    target: Callable[[int], Target] = host_target
    library: CodeLibrary = CODE
    explains: bool = False
    timed: bool = False
    capture_only: bool = False

    @property
    def decides(self) -> bool:
        """Whether eager may run calls: not if each call is to be looked into, or measured."""
        config = self.config
        looked_into = config.verify or config.tune == "measure" or config.fuel is not None
        return config.hand_back and not looked_into

    def raise_if_fatal(self, error: Exception) -> None:
        """Raise an error of compilation under `strict`, or if memory was missing.

        Missing memory says nothing of later calls: the next one compiles.
        """
        if self.config.strict or isinstance(error, OUT_OF_MEMORY):
            raise error

    def fallback_reason(self, error: Exception, gm: GraphModule) -> str:
        """Warn that PyTorch runs a whole program, and return why; raise a fatal error."""
        strict = self.config.strict
        reason = message_of(error) if strict else first_line(error)
        if not isinstance(error, TofuseError) and str(error).strip():
            reason = f"{type(error).__name__}: {reason}"
        lines = (loc for n in gm.graph.nodes if (loc := source_location(n)) is not None)
        where = next((f" (from {loc!r})" for loc in lines), "")
        if strict and not isinstance(error, (CompileError, *OUT_OF_MEMORY)):
            raise CompileError(f"a program{where} does not compile: {reason}") from error
        self.raise_if_fatal(error)
        message = f"tofuse runs a whole program{where} through PyTorch: {reason}"
        warnings.warn(message, TofuseWarning, stacklevel=2)
        return reason


def make_context(config: Config, *, explains: bool = False, timed: bool = False) -> CompileContext:
    """Return the context for these options.

    Raises OptionError for unknown executors, and for files and folders that cannot be used.
    """
    claims = _claims(config)
    check_machine(config)
    try:
        if config.dump is not None:
            config.dump.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OptionError(f"dump={str(config.dump)!r} is not a writable folder: {e}") from e
    target = eager_target if config.rounds_as_eager else host_target
    return CompileContext(config, claims, target, explains=explains, timed=timed)


def eager_target(threads: int) -> Target:
    """Return this processor without the instructions that flush subnormal numbers to zero."""
    return replace(host_target(threads), bf16_dot=False, bf16_tiles=False)


def _claims(config: Config) -> ClaimPredicate:
    """Return whether a call is claimed.

    Executors before our kernels claim their operators, PyTorch the calls that our kernels reject.
    An operator whose function the vector library does not export is claimed on the CPU, because
    PyTorch has to run it.
    """
    executors = executors_of(config)
    missing = frozenset(
        f"aten.{f}.default" for f in CODE.bind_vector_library(find_vector_library())
    )

    def claims(request: Request) -> bool:
        is_missing = request.target in missing and all(t.device == "cpu" for t in request.inputs)
        return is_missing or executors.claims(request)

    return claims if missing or executors.may_claim else claim_nothing
