"""The first call of a program decides whether eager or compiled code runs this kind of call."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Sequence

import torch
from torch.fx import GraphModule

from tofuse.cache.fingerprint import torch_state
from tofuse.cache.programs import Decision, load_decision, store_decision
from tofuse.capture.dynamo.eager_program import EagerProgram
from tofuse.capture.dynamo.legality import needs_eager
from tofuse.capture.dynamo.overlap_guard import OverlapGuard
from tofuse.capture.dynamo.specialize_sizes import has_symbolic_sizes, size_arguments, sizes_at
from tofuse.cost.call_overhead import COMPILED_IS_FASTER, Faster, Prediction
from tofuse.cost.thresholds import (
    FIRST_CALL_TIMING_S,
    GUARDED_CALL_US,
    MAX_TIMED_FIRST_CALL_S,
    MIN_COMPILED_GAIN,
    MIN_FIRST_CALL_TIMING_ROUNDS,
    TRAINING_CALL_US,
)
from tofuse.dispatch.call_kind import is_plain_tensor
from tofuse.dispatch.dispatcher import Dispatcher, Entry, Kind
from tofuse.driver.function_record import FunctionRecord, log
from tofuse.torch_internals.dispatch import has_saved_tensor_hooks

Program = Callable[..., object]
SizesOf = Callable[[Sequence[object]], Hashable]


def add_eager_calls(
    dispatcher: Dispatcher[object],
    eager: EagerProgram,
    overlaps: OverlapGuard | None,
    inputs: Sequence[object],
    function: FunctionRecord,
    found: Prediction | Decision,
) -> None:
    """Add entries for calls that need PyTorch, and for calls that eager runs faster.

    If `found` is a prediction, the first call decides who is faster. If it is the decision of an
    earlier process, that holds.
    """
    guards: list[tuple[Callable[..., bool], str]] = [(needs_eager, "it needs PyTorch's operators")]
    if overlaps is not None:
        guards.append((overlaps, "a written argument overlaps another"))
    for guard, why in guards:
        run = _saying(function, eager, why) if function.context.explains else eager
        dispatcher.add(Entry(Kind.NEEDS_PYTORCH, guard, run, why))
    if isinstance(found, Decision):
        FirstCall(dispatcher, eager, None, function).install(found)
        return
    if not function.context.decides:
        return
    sizes_of: SizesOf | None = None
    if has_symbolic_sizes(inputs):
        positions = size_arguments(inputs)
        if not positions:
            function.hand_back.runs_compiled = True
            return
        sizes_of = functools.partial(sizes_at, positions)
    dispatcher.general = FirstCall(dispatcher, eager, sizes_of, function, found)


def _saying(function: FunctionRecord, eager: EagerProgram, why: str) -> Program:
    """Return the program in eager; the report says why it runs."""

    def run(*args: object) -> object:
        function.add_decision(f"eager runs this call: {why}")
        return eager(*args)

    return run


class FirstCall:
    """The general code of a program until its first call: it decides, and the decision stays.

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
        function: FunctionRecord,
        prediction: Prediction = COMPILED_IS_FASTER,
    ) -> None:
        self.dispatcher, self.eager, self.function = dispatcher, eager, function
        self.context, self.prediction = function.context, prediction
        self.compiled: Program = dispatcher.general
        self.sizes_of = sizes_of
        self.sizes: dict[str, Hashable] = {}  # one entry, of the first call
        self.decided: dict[str, Decision] = {}  # one entry

    def __call__(self, *args: object) -> object:
        if self.sizes_of is not None:
            sizes = self.sizes_of(args)
            if self.sizes.setdefault("sizes", sizes) != sizes:
                return self.compiled(*args)
        mine, key = self._decide(args)
        decision = self.decided.setdefault("decision", mine)  # one step for all threads
        if decision is mine:
            if key is not None:
                store_decision(key, mine, self.context.config)
            self.install(decision)
        return (self._run_eager if self._runs_eagerly(decision) else self.compiled)(*args)

    def _runs_eagerly(self, decision: Decision) -> bool:
        """Return whether eager runs these calls: not if a report describes the compiled program."""
        return decision.in_eager and not self.context.explains

    def _run_eager(self, *args: object) -> object:
        self.function.hand_back.calls.in_eager += 1
        return self.eager(*args)

    def install(self, decision: Decision) -> None:
        """Let the dispatcher do as decided, without this object."""
        dispatcher, record = self.dispatcher, self.function.hand_back
        self.function.add_decision(decision.text)
        if not self._runs_eagerly(decision):
            record.runs_compiled = True
            dispatcher.general = self.compiled
        elif self.sizes_of is None:
            dispatcher.general = self._run_eager
            self.function.capture.eager_reason = decision.why
        else:
            record.runs_compiled = True  # calls with other sizes
            sizes_of, sizes = self.sizes_of, self.sizes["sizes"]
            has_sizes = lambda *a: sizes_of(a) == sizes  # noqa: E731
            dispatcher.add(Entry(Kind.EAGER, has_sizes, self._run_eager, decision.text))
            dispatcher.general = self.compiled

    def _decide(self, args: Sequence[object]) -> tuple[Decision, tuple[str, ...] | None]:
        """Return the decision, and the key under which it is to be kept on disk."""
        if not all(map(_is_plain, args)):
            return Decision(False, "an argument is no plain tensor on the CPU"), None
        prediction = self.prediction
        if prediction.faster is not Faster.UNKNOWN:
            return Decision(prediction.faster is Faster.EAGER, prediction.why), None
        if torch.are_deterministic_algorithms_enabled():
            return _predicted(prediction, "nothing is timed with deterministic algorithms"), None
        key = self._key(args)
        if key is None:
            return _predicted(prediction, "torch's state is not known"), None
        found = load_decision(key, self.context.config)
        if found is not None:
            return found, None
        decision = self._measure(prediction, args)
        found = load_decision(key, self.context.config)  # of a process that began with this one
        return (decision, key) if found is None else (found, None)

    def _key(self, args: Sequence[object]) -> tuple[str, ...] | None:
        """Return what identifies the program and the kind of call on disk."""
        try:
            modules = (m for m in self.eager.module.modules() if isinstance(m, GraphModule))
            codes = [module.code for module in modules]  # also of programs inside the program
            return (torch_state(), *codes, *map(_describe, args))
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
            times = _fastest_us([self.eager, self.compiled], args)
        except Exception as error:  # the call itself will raise it
            log.debug("a program cannot be timed: %s", error)
            return _predicted(prediction, "it raised an error when it was timed")
        log.debug("timed a program for %.1f ms", 1e3 * (time.perf_counter() - begin))
        if times is None:
            return _predicted(prediction, "its calls take too long to be timed")
        eager_us, compiled_us = times
        # a backward takes about twice the time of its forward, beside the overhead of both
        overhead_us = TRAINING_CALL_US / 3 if prediction.trains else GUARDED_CALL_US
        in_eager = eager_us < (compiled_us + overhead_us) * MIN_COMPILED_GAIN
        what = "the forward" if prediction.trains else "the first call"
        why = f"{what} took {eager_us:.0f} us in eager and {compiled_us:.0f} us compiled"
        return Decision(in_eager, f"{why}, without guards")


def _predicted(prediction: Prediction, reason: str) -> Decision:
    return Decision(prediction.leans_to_eager, f"{prediction.why}; {reason}")


def _is_plain(argument: object) -> bool:
    """Return whether an argument is a size, or a plain tensor on the CPU."""
    if isinstance(argument, torch.Tensor):
        return is_plain_tensor(argument)
    return isinstance(argument, int)


def _describe(argument: object) -> str:
    if not isinstance(argument, torch.Tensor):
        return repr(argument)
    kind = argument.dtype, tuple(argument.shape), argument.stride(), argument.requires_grad
    return f"{kind} {argument.is_leaf}"


def _fastest_us(calls: Sequence[Program], args: Sequence[object]) -> list[float] | None:
    """Return the shortest time of each call in microseconds; the calls take turns.

    None if a first call takes longer than all calls may. Tensors that require grad are replaced by
    leaves, so that no hook of the user's sees a gradient.
    """
    aliases = [_alias(a) for a in args]
    for call in calls:
        start = time.perf_counter()
        call(*aliases)
        if time.perf_counter() - start > MAX_TIMED_FIRST_CALL_S:
            return None
    best = [float("inf")] * len(calls)
    begin, rounds = time.perf_counter(), 0
    while (
        spent := time.perf_counter() - begin
    ) < FIRST_CALL_TIMING_S or rounds < MIN_FIRST_CALL_TIMING_ROUNDS:
        if rounds and spent > MAX_TIMED_FIRST_CALL_S:
            break
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
