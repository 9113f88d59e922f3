"""The first call of a program decides whether eager or compiled code runs this kind of call."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from tofuse.cache.fingerprint import torch_state
from tofuse.cache.programs import load_decision, store_decision
from tofuse.capture.dynamo.eager_program import EagerProgram
from tofuse.capture.dynamo.legality import needs_eager
from tofuse.capture.dynamo.overlap_guard import OverlapGuard
from tofuse.capture.dynamo.specialize_sizes import (
    has_symbolic_sizes,
    size_arguments,
    sizes_at,
)
from tofuse.cost.call_overhead import Faster, Prediction
from tofuse.cost.thresholds import (
    DECISION_ROUNDS,
    DECISION_S,
    GUARDED_CALL_US,
    MIN_EAGER_GAIN,
    TRAINING_CALL_US,
)
from tofuse.driver.context import CompileContext, log
from tofuse.driver.variants import Dispatcher, Variant
from tofuse.torch_internals.dispatch import has_saved_tensor_hooks

Program = Callable[..., object]
SizesOf = Callable[[Sequence[object]], Hashable]
PLAIN = (torch.Tensor, torch.nn.Parameter)


def add_eager_calls(
    dispatcher: Dispatcher[object],
    eager: EagerProgram,
    overlaps: OverlapGuard | None,
    inputs: Sequence[object],
    context: CompileContext,
) -> None:
    """Let eager run the calls that it must run, and those that it runs faster."""
    variants = [Variant[object](needs_eager, eager, "the call needs PyTorch's operators")]
    if overlaps is not None:
        variants.append(Variant(overlaps, eager, "a written argument overlaps another"))
    dispatcher.guarded = (*variants,)
    if not context.decides:
        return
    sizes_of: SizesOf | None = None
    if has_symbolic_sizes(inputs):
        positions = size_arguments(inputs)
        if not positions:
            context.hand_back.runs_compiled = True
            return
        sizes_of = functools.partial(sizes_at, positions)
    dispatcher.default = FirstCall(dispatcher, eager, sizes_of, context)


@dataclass(frozen=True)
class Decision:
    """Whether eager runs a program, and why."""

    in_eager: bool
    why: str

    @property
    def text(self) -> str:
        who = "eager runs" if self.in_eager else "compiled code runs"
        return f"{who} calls of this kind: {self.why}"


class FirstCall:
    """The default of a program until its first call: it decides, and the decision stays.

    `sizes_of` returns what varies between calls of a program with symbolic sizes: the decision
    holds for the sizes of the first call, and others run compiled. It is None if no size varies.

    The decision comes before the first result, and is kept on disk if it was measured. So the same
    call has the same bits in all calls, and in a later process that finds the decision. Of several
    threads, the first that has decided decides for all.
    """

    def __init__(
        self,
        dispatcher: Dispatcher[object],
        eager: EagerProgram,
        sizes_of: SizesOf | None,
        context: CompileContext,
    ) -> None:
        self.dispatcher, self.eager, self.context = dispatcher, eager, context
        self.compiled: Program = dispatcher.default
        self.sizes_of = sizes_of
        self.sizes: dict[str, Hashable] = {}  # one entry, of the first call
        self.decided: dict[str, Decision] = {}  # one entry

    def __call__(self, *args: object) -> object:
        if self.sizes_of is not None:
            sizes = self.sizes_of(args)
            if self.sizes.setdefault("sizes", sizes) != sizes:
                return self.compiled(*args)
        mine = self._decide(args)
        decision = self.decided.setdefault("decision", mine)  # one step for all threads
        if decision is mine:
            self._install(decision)
        return (self._run_eager if self._runs_eagerly(decision) else self.compiled)(*args)

    def _runs_eagerly(self, decision: Decision) -> bool:
        """Return whether eager runs these calls: not if a report describes the compiled program."""
        return decision.in_eager and not self.context.reports

    def _run_eager(self, *args: object) -> object:
        self.context.hand_back.calls.in_eager += 1
        return self.eager(*args)

    def _install(self, decision: Decision) -> None:
        """Let the dispatcher do as decided, without this object."""
        dispatcher, record = self.dispatcher, self.context.hand_back
        self.context.report_decision(decision.text)
        if not self._runs_eagerly(decision):
            record.runs_compiled = True
            dispatcher.default = self.compiled
        elif self.sizes_of is None:
            dispatcher.default = self._run_eager
        else:
            record.runs_compiled = True  # calls with other sizes
            sizes_of, sizes = self.sizes_of, self.sizes["sizes"]
            same_sizes = Variant(lambda *a: sizes_of(a) == sizes, self._run_eager, decision.text)
            dispatcher.guarded = (*dispatcher.guarded, same_sizes)
            dispatcher.default = self.compiled

    def _decide(self, args: Sequence[object]) -> Decision:
        if not all(map(_is_plain, args)):
            return Decision(False, "an argument is no plain tensor on the CPU")
        prediction = self.context.program.prediction
        if prediction.faster is not Faster.UNKNOWN:
            return Decision(prediction.faster is Faster.EAGER, prediction.why)
        if torch.are_deterministic_algorithms_enabled():
            return _predicted(prediction, "nothing is timed with deterministic algorithms")
        key = self._key(args)
        if key is None:
            return _predicted(prediction, "torch's state is not known")
        found = load_decision(key, self.context.config)
        if found is not None:
            return Decision(*found)
        decision = self._measure(prediction, args)
        store_decision(key, (decision.in_eager, decision.why), self.context.config)
        return decision

    def _key(self, args: Sequence[object]) -> tuple[str, ...] | None:
        """Return what identifies the program and the kind of call on disk."""
        try:
            return (torch_state(), self.eager.module.code, *map(_describe, args))
        except Exception:
            return None

    def _measure(self, prediction: Prediction, args: Sequence[object]) -> Decision:
        """Time both ways on the arguments of the call."""
        if not prediction.pure:
            return _predicted(prediction, "a program with effects is not run to be timed")
        if has_saved_tensor_hooks():
            return _predicted(prediction, "hooks would see what autograd saves")
        begin = time.perf_counter()
        try:
            eager_us, compiled_us = _fastest_us([self.eager, self.compiled], args)
        except Exception as error:  # the call itself will raise it
            log.debug("a program cannot be timed: %s", error)
            return _predicted(prediction, "it raised an error when it was timed")
        log.debug("timed a program for %.1f ms", 1e3 * (time.perf_counter() - begin))
        # a backward takes about twice the time of its forward, beside the overhead of both
        overhead_us = TRAINING_CALL_US / 3 if prediction.trains else GUARDED_CALL_US
        in_eager = eager_us * MIN_EAGER_GAIN < compiled_us + overhead_us
        what = "the forward" if prediction.trains else "the first call"
        why = f"{what} took {eager_us:.0f} us in eager and {compiled_us:.0f} us compiled"
        return Decision(in_eager, f"{why}, without guards")


def _predicted(prediction: Prediction, reason: str) -> Decision:
    return Decision(prediction.leans_to_eager, f"{prediction.why}; {reason}")


def _is_plain(argument: object) -> bool:
    """Return whether an argument is a size, or a plain tensor on the CPU."""
    if not isinstance(argument, torch.Tensor):
        return isinstance(argument, int)
    is_strided = argument.layout is torch.strided and not argument.is_nested
    return type(argument) in PLAIN and argument.is_cpu and is_strided


def _describe(argument: object) -> str:
    if not isinstance(argument, torch.Tensor):
        return repr(argument)
    kind = argument.dtype, tuple(argument.shape), argument.stride(), argument.requires_grad
    return f"{kind} {argument.is_leaf}"


def _fastest_us(calls: Sequence[Program], args: Sequence[object]) -> list[float]:
    """Return the shortest time of each call in microseconds; the calls take turns.

    They get aliases, which are leaves of autograd's graph: no hook of the user's sees them.
    """
    aliases = [_alias(a) for a in args]
    for call in calls:
        call(*aliases)
    best = [float("inf")] * len(calls)
    end, rounds = time.perf_counter() + DECISION_S, 0
    while rounds < DECISION_ROUNDS or time.perf_counter() < end:
        for k, call in enumerate(calls):
            start = time.perf_counter()
            call(*aliases)
            best[k] = min(best[k], time.perf_counter() - start)
        rounds += 1
    return [1e6 * seconds for seconds in best]


def _alias(argument: object) -> object:
    if not isinstance(argument, torch.Tensor):
        return argument
    return argument.detach().requires_grad_(argument.requires_grad)
