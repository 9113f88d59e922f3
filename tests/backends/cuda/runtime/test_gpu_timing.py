"""Timing calls on a GPU in turn, and the tensors they are timed on, with a fake driver."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch

from tests.support.interpreted import needs_triton
from tofuse.backends.cuda.runtime.gpu_driver import replaced_driver
from tofuse.backends.cuda.runtime.gpu_timing import (
    MAX_ROUNDS,
    MIN_ROUNDS,
    ROUNDS_OF_ALL,
    interleaved_gpu_us,
)
from tofuse.ir.graph import Value
from tofuse.ir.types import DType, TensorType
from tofuse.runtime.sample_inputs import DISTINCT, sample_tensors


class Clock:
    """A driver on which each call takes the time that it returns; `rounds` has those of each."""

    def __init__(self) -> None:
        self.rounds: list[list[object]] = []

    def on_device(self, device: int):
        return nullcontext()

    def elapsed_us(self, calls: Sequence[Callable[[], object]]) -> list[object]:
        self.rounds.append([call() for call in calls])
        return self.rounds[-1]


def timed(calls, seconds: float) -> tuple[list[float], list[list[object]]]:
    clock = Clock()
    with replaced_driver(clock):  # type: ignore[arg-type]
        return interleaved_gpu_us(calls, 0, seconds), clock.rounds


def test_the_median_of_each_call_is_returned():
    noisy = iter([9.0, 1.0, 50.0, 1.0, 1.0, 1.0])  # the first is a warm-up
    times, rounds = timed([lambda: next(noisy), lambda: 1.25], seconds=0)
    assert times == [1.0, 1.25] and len(rounds) == 1 + MIN_ROUNDS


def test_slow_calls_are_left_out_early():
    times, rounds = timed([lambda: 2.0, lambda: 5.0, lambda: 2.5], seconds=0)
    assert times == [2.0, 5.0, 2.5]
    assert [len(r) for r in rounds] == [3] * (1 + ROUNDS_OF_ALL) + [2] * (MIN_ROUNDS - 3)


def test_rounds_are_bounded():
    _, rounds = timed([lambda: 2.0], seconds=100)
    assert len(rounds) == 1 + MAX_ROUNDS


@needs_triton
def test_sample_tensors_on_a_gpu_repeat_numbers():
    from tests.support.fake_gpu import FakeGpu

    shapes = (3, 700_001), (7,), (), (0, 5)
    values = [Value(TensorType(s, DType.F32, "cuda:0"), f"x{k}") for k, s in enumerate(shapes)]
    with replaced_driver(FakeGpu()):
        tensors = sample_tensors(values)
    assert [tuple(t.shape) for t in tensors] == [*shapes]
    flat = tensors[0].flatten()
    assert torch.equal(flat[DISTINCT : 2 * DISTINCT], flat[:DISTINCT])
    assert flat.unique().numel() > DISTINCT // 2 and abs(float(flat.mean())) < 0.01
