"""Hand calls back to eager that a compiled call does not beat: small ones, and library calls."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import torch
from torch.compiler import is_dynamo_compiling

from tofuse.capture.dynamo.graph_breaks import num_graph_breaks
from tofuse.cost.call_overhead import Faster, Prediction
from tofuse.torch_internals.dispatch import has_saved_tensor_hooks

P = ParamSpec("P")
R = TypeVar("R")
SIMPLE = (bool, int, float, str, type(None))
PLAIN = (torch.Tensor, torch.nn.Parameter)
MAX_KINDS = 256  # of calls that are handed back
SEEN = 16  # handed back in a row: then one in so many is looked up
TIMED_CALLS = 20  # of eager and compiled, each
WARM_UP = 4  # calls of both before, that are not timed
GAIN = 1.03  # a kind is handed back if eager is faster by this factor


def _shuffled() -> list[bool]:
    """Return who runs the calls of a trial: eager (True) and compiled as often."""
    timed = [True, False] * TIMED_CALLS
    random.Random(0).shuffle(timed)
    return [False, True] * WARM_UP + timed


@dataclass(eq=False)
class Trial:
    """Calls of one kind that run in eager or compiled, in a shuffled order, with their times.

    The time of a call of a program that `trains` ends where the next call begins, so that it
    contains the backward. If a step makes several calls, it contains backwards of others, too; in a
    shuffled order these are as often eager's.
    """

    trains: bool = False
    eager: list[float] = field(default_factory=list)
    compiled: list[float] = field(default_factory=list)
    order: list[bool] = field(default_factory=_shuffled)
    count: int = 0
    last_begin: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether all calls have run; in training, their last time is then not yet known."""
        return self.count >= len(self.order)


@dataclass(eq=False)
class HandBack:
    """The programs of one compiled function, and the kinds of calls that eager runs.

    `predictions` has an entry for each program. `trials` are the kinds that are being measured. A
    function is `broken` if graph breaks left nothing to compile; `timed` are the kinds of such a
    function that are or were measured.
    """

    predictions: list[Prediction] = field(default_factory=list)
    kinds: set[Hashable] = field(default_factory=set)
    trials: dict[Hashable, Trial] = field(default_factory=dict)
    broken: bool = False
    timed: set[Hashable] = field(default_factory=set)

    def decide(self, kind: Hashable, report: Callable[[str], None]) -> None:
        """Decide on the kind of a call that compiled programs, or of a broken function.

        Nothing is handed back if the user wants results that do not depend on times or counts.
        """
        found = {p.faster for p in self.predictions}
        if kind is None or Faster.COMPILED in found or len(self.kinds) >= MAX_KINDS:
            return
        if torch.are_deterministic_algorithms_enabled():
            return
        if found == {Faster.EAGER}:
            self.kinds.add(kind)
            report(f"eager runs calls of this kind: {self.predictions[-1].why}")
        elif found:
            self.trials[kind] = Trial(any(p.trains for p in self.predictions))
        elif kind not in self.timed and len(self.timed) < MAX_KINDS:
            self.timed.add(kind)
            self.trials[kind] = Trial(torch.is_grad_enabled())


def hand_back(
    compiled: Callable[P, R],
    original: Callable[P, R],
    record: HandBack,
    report: Callable[[str], None],
) -> Callable[P, R]:
    """Return a function that runs `compiled`, or `original` for calls that it does not speed up.

    A kind is handed back if its first call compiled programs, and eager is predicted to run all
    programs of the function at least as fast. If that is uncertain, or graph breaks left nothing to
    compile, the next calls of the kind run in turn, and are timed. Looking up a kind takes up to 16
    us after a large call, so after `SEEN` handed-back calls in a row only one call in `SEEN` is
    looked up; the others run in eager, whatever their kind. Eager is right for every call.

    While hooks for saved tensors are active, calls run compiled: a checkpoint compares what a call
    and its repetition save.
    """
    in_a_row = unseen = 0

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal in_a_row, unseen
        if is_dynamo_compiling() or has_saved_tensor_hooks():
            return compiled(*args, **kwargs)
        if unseen > 0:
            unseen -= 1
            return original(*args, **kwargs)
        kind = kind_of_call(args, kwargs) if record.kinds or record.trials else None
        if kind is not None and kind in record.kinds:
            in_a_row += 1
            unseen = SEEN - 1 if in_a_row >= SEEN else 0
            return original(*args, **kwargs)
        in_a_row = 0
        trial = record.trials.get(kind)
        if trial is not None:
            result = _timed(trial, compiled, original, args, kwargs)
            if trial.is_over:
                _conclude(record, kind, trial, report)
            return result
        for other in (*record.trials.values(),) if record.trials else ():
            other.last_begin = None
        before = len(record.predictions)
        breaks = 0 if before else num_graph_breaks()
        result = compiled(*args, **kwargs)
        if not before and num_graph_breaks() > breaks:
            record.broken = True
        if len(record.predictions) != before or (record.broken and not before):
            record.decide(kind_of_call(args, kwargs), report)
        return result

    return call


def _timed(
    trial: Trial,
    compiled: Callable[..., R],
    original: Callable[..., R],
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> R:
    """Run a call in eager or compiled, and record its time, or that of the call before it."""
    number, last_begin, begin = trial.count, trial.last_begin, time.perf_counter()
    trial.count, trial.last_begin = number + 1, begin
    if trial.trains and last_begin is not None:
        _record(trial, number - 1, begin - last_begin)
    # of several threads, some may come after the end
    in_eager = number < len(trial.order) and trial.order[number]
    result = (original if in_eager else compiled)(*args, **kwargs)
    if not trial.trains:
        _record(trial, number, time.perf_counter() - begin)
    return result


def _record(trial: Trial, number: int, seconds: float) -> None:
    """Record the time of a call after the first ones, which may compile a backward."""
    if 2 * WARM_UP <= number < len(trial.order):
        (trial.eager if trial.order[number] else trial.compiled).append(seconds)


def _conclude(
    record: HandBack, kind: Hashable, trial: Trial, report: Callable[[str], None]
) -> None:
    """End a trial; hand the kind back if eager was faster, in median and lower quartile."""
    record.trials.pop(kind, None)
    if min(len(trial.eager), len(trial.compiled)) < TIMED_CALLS / 2:
        return
    quartiles = [statistics.quantiles(x, n=4) for x in (trial.eager, trial.compiled)]
    (lower, eager, _), (lower_compiled, compiled, _) = quartiles
    eager, compiled = 1e6 * eager, 1e6 * compiled
    if eager * GAIN < compiled and lower < lower_compiled:
        record.kinds.add(kind)
        report(
            f"eager runs calls of this kind: they took {eager:.0f} us in eager and "
            f"{compiled:.0f} us compiled"
        )


def kind_of_call(args: Sequence[object], kwargs: Mapping[str, object]) -> Hashable:
    """Return the grad mode, the shapes and dtypes of tensors, and the values of other arguments.

    Return None if an argument is anything but a plain CPU tensor, a number, a text or None.
    """
    kind: list[Hashable] = [torch.is_grad_enabled()]
    for argument in (*args, *kwargs, *kwargs.values()):
        if isinstance(argument, torch.Tensor):
            is_plain = type(argument) in PLAIN and argument.is_cpu and not argument.is_nested
            if not is_plain or argument.layout is not torch.strided:
                return None
            kind.append((argument.shape, argument.dtype, argument.requires_grad))
        elif isinstance(argument, SIMPLE):
            kind.append((type(argument), argument))
        else:
            return None
    return tuple(kind)
