"""Who is predicted to be faster: eager, the compiled program, or it is uncertain."""

import pytest

from tofuse.cost.call_overhead import Faster, predict_faster
from tofuse.cost.machine import default_machine
from tofuse.ir.parse_graph import parse_graph


def chain(length, elements):
    """A graph of unary operations on one vector."""
    lines = [f"  v{k + 1} = neg(v{k}) : f32[{elements}]" for k in range(length)]
    body = "\n".join(lines)
    return parse_graph(f"graph(v0: f32[{elements}]) {{\n{body}\n  return v{length}\n}}")


CASES = [
    (1, 10, "inference", Faster.EAGER),
    (1, 10, "forward", Faster.EAGER),
    (80, 10, "inference", Faster.COMPILED),
    (1, 1_000_000, "inference", Faster.UNKNOWN),
    (1, 1_000_000, "forward", Faster.UNKNOWN),
    (20, 1_000_000, "forward", Faster.COMPILED),
    (20, 1_000_000, "inference", Faster.COMPILED),
]


@pytest.mark.parametrize(("length", "elements", "phase", "expected"), CASES)
def test_a_chain(length, elements, phase, expected):
    machine = default_machine(1, 16)
    own_us = 2.0 + elements * 8 / machine.memory_rate / 1e3
    found = predict_faster(chain(length, elements), 1, 0, 0, own_us, lambda op: machine, phase)
    assert found.faster is expected


def test_without_a_kernel_eager_is_as_fast():
    graph, machine = chain(3, 1_000_000), default_machine(1, 16)
    assert (
        predict_faster(graph, 0, 0, 1, 500.0, lambda op: machine, "forward").faster is Faster.EAGER
    )
    timed = predict_faster(graph, 0, 1, 0, 500.0, lambda op: machine, "forward")
    assert timed.faster is Faster.UNKNOWN
