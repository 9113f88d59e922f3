"""What `tofuse.compile` takes: functions, modules, methods; what it refuses; and coroutines."""

import logging
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import tofuse
from tofuse.errors import CaptureError

REFUSED = [None, 3, "model", torch.ones(2), [nn.Linear(2, 2)], nn.Linear, int, property(len)]


@pytest.mark.broad(1)
@pytest.mark.parametrize("target", REFUSED, ids=lambda x: type(x).__name__)
def test_what_is_no_callable_instance_is_refused(target):
    for function in (tofuse.compile, tofuse.explain, tofuse.memory_efficient_fusion):
        with pytest.raises(TypeError, match="tofuse compiles functions and modules, and ") as error:
            function(target)
        assert "tofuse.compile(" in str(error.value)


@pytest.mark.broad(1)
@pytest.mark.parametrize("capture", ["dynamo", "trace"])
def test_static_and_class_methods_stay_what_they_are(capture):
    decorate = tofuse.compile(capture=capture, hand_back=False)

    class Operations:
        scale = 3.0

        @decorate
        @staticmethod
        def shift(x: torch.Tensor) -> torch.Tensor:
            return x.sin() + 1

        @staticmethod
        @decorate
        def shift_inside(x: torch.Tensor) -> torch.Tensor:
            return x.sin() + 1

        @decorate
        @classmethod
        def scaled(cls, x: torch.Tensor) -> torch.Tensor:
            return x.cos() * cls.scale

    class Others(Operations):
        scale = 5.0

    x = torch.randn(7)
    for owner in (Operations, Operations(), Others, Others()):
        torch.testing.assert_close(owner.shift(x), x.sin() + 1)
        torch.testing.assert_close(owner.shift_inside(x), x.sin() + 1)
        torch.testing.assert_close(owner.scaled(x), x.cos() * owner.scale)


COROUTINES = """
import asyncio, functools, torch, tofuse

async def double(x):
    return x.sin() * 2

def around(x):
    y = x.cos()
    coroutine = double(y)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value + y

async def after_a_break(x):
    y = x.cos()
    torch._dynamo.graph_break()
    return await double(y) + await double(y + 1)

class Module(torch.nn.Module):
    async def forward(self, x):
        return await double(x) + 1

class Object:
    async def __call__(self, x):
        return await double(x) + 1

    async def method(self, x):
        return await double(x) - 1

    @staticmethod
    async def static(x):
        return await double(x) - 1

async def generator(x):
    yield x.sin()
    yield await double(x)

async def of_generator(x):
    return [y async for y in generator(x)]

targets = [double, around, after_a_break, Module(), Object(), Object().method, Object.static,
           functools.partial(double), lambda x: double(x), of_generator]
run = lambda result: asyncio.run(result) if asyncio.iscoroutine(result) else result
for target in targets:
    for options in ({}, {"hand_back": False}, {"background": True}, {"strict": True}):
        compiled = tofuse.compile(target, **options)
        for size in (4, 5, 4):
            x = torch.arange(float(size))
            torch.testing.assert_close(run(compiled(x)), run(target(x)))
"""


def test_coroutines_are_left_to_python():
    """The debugging allocator ends a process that writes behind a coroutine's frame."""
    done = subprocess.run(
        [sys.executable, "-c", COROUTINES],
        env={"PYTHONMALLOC": "debug", "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_report_names_a_coroutine_function():
    async def wave(x):
        return x.sin() + 1

    def first_step(x):
        try:
            wave(x.cos()).send(None)
        except StopIteration as end:
            return end.value

    assert "wave is a coroutine function" in str(tofuse.explain(first_step)(torch.ones(3)))


def test_a_traced_result_that_is_not_computed_yet_is_refused():
    lazy = [lambda x: (x.sin() for _ in range(2)), lambda x: [map(torch.sin, [x])]]
    for function in lazy:
        with pytest.raises(CaptureError, match="whose operations are not run yet"):
            tofuse.compile(function, capture="trace")(torch.ones(3))


class Keep(logging.Handler):
    """Keeps the texts of errors."""

    def __init__(self, records: list[str]) -> None:
        super().__init__(logging.ERROR)
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record.getMessage())


class Holder:
    array = np.arange(12.0, dtype=np.float32).reshape(3, 4)


ARRAYS = {
    "argument": lambda a: a * 2 + 1,
    "transposed": lambda a: a.T.copy() + 1,
    "attribute": lambda a: a + Holder.array,
    "tensor of an array": lambda a: torch.from_numpy(Holder.array).sin() + 1,
    "list of arrays": lambda a: [a, a + 1][1] * Holder.array[0],
}


@pytest.mark.broad(2)
@pytest.mark.parametrize("name", ARRAYS)
def test_functions_of_arrays_compile_without_logged_errors(name):
    records: list[str] = []
    handler = Keep(records)
    logging.getLogger("torch").addHandler(handler)
    logging.getLogger("torch._guards").addHandler(handler)
    array, function = np.arange(12.0, dtype=np.float32).reshape(3, 4), ARRAYS[name]
    try:
        compiled = tofuse.compile(function, hand_back=False)
        for k in range(3):
            np.testing.assert_allclose(
                compiled(array + k), function(array + k), rtol=1e-6, atol=1e-6
            )
        assert tofuse.explain(function)(array).kernels
    finally:
        logging.getLogger("torch").removeHandler(handler)
        logging.getLogger("torch._guards").removeHandler(handler)
    assert not records
