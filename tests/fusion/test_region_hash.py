"""Structural keys are equal for regions with equal kernels, and different for others."""

import pytest

from tofuse.analysis.alias import AliasAnalysis
from tofuse.backends.cpu.llvm.load import host_target
from tofuse.cost.kernel_cost import Evaluation
from tofuse.cost.machine import Machine
from tofuse.driver.pipeline import cost_oracle, partition
from tofuse.fusion.partition.region_evaluator import RegionEvaluator
from tofuse.fusion.region_hash import region_structure
from tofuse.ir.graph import Graph
from tofuse.ir.kernel import Kernel
from tofuse.ir.parse_graph import parse_graph
from tofuse.ir.region import Region


def key_of(text: str, rounded: tuple[str, ...] = ()) -> object:
    """The key of a region of all ops of a graph."""
    graph = parse_graph(text)
    region = Region("r", graph.ops, tuple(v for v in graph.outputs if v is not None))
    return region_structure(region, AliasAnalysis(graph).memrefs, rounded).key


PLAIN = """forward(x: f32[8,16], y: f32[8,16]) {
  a = mul(x, 2.0) : f32[8,16]
  b = add(a, y) : f32[8,16]
  return b
}"""


def test_names_do_not_change_the_key():
    assert key_of(PLAIN) == key_of(
        PLAIN.replace("x", "p").replace("a =", "q =").replace("(a", "(q")
    )


@pytest.mark.parametrize(
    "old, new",
    [
        ("mul(x, 2.0)", "mul(x, 3.0)"),
        ("mul(x, 2.0)", "mul(x, 2)"),
        ("mul(x, 2.0)", "mul(y, 2.0)"),
        ("mul(x", "sub(x"),
        ("add(a, y)", "add(y, a)"),
        ("add(a, y)", "add(a, a)"),
        ("add(a, y)", "add(a, x)"),
        ("16]", "17]"),
        ("f32[", "f64["),
        ("x: f32[8,16]", "x: f32[8,16]{1,8}"),
        ("return b", "return a"),
        ("return b", "return a, b"),
    ],
)
def test_structure_changes_the_key(old: str, new: str):
    text = PLAIN.replace(old, new)
    assert text != PLAIN and key_of(text) != key_of(PLAIN)


def test_rounding_changes_the_key():
    text = PLAIN.replace("f32", "bf16")
    assert key_of(text, ("a",)) != key_of(text)
    assert key_of(text, ("a",)) == key_of(text.replace("a =", "q =").replace("(a", "(q"), ("q",))


def test_constants_differ_by_sign_of_zero_and_by_type():
    texts = [
        f"""forward() {{
  a = full(value={v}, shape=(4,), dtype=f32) : f32[4]
  return a
}}"""
        for v in ("0.0", "-0.0", "0")
    ]
    assert len({key_of(t) for t in texts}) == 3


def layers(count: int) -> Graph:
    """A chain of norms with a library call before each."""
    lines, x = [], "x"
    for k in range(count):
        lines += [
            f"  p{k} = opaque({x}, target='aten.cos.default', args='$0', shape=(64, 128),"
            " dtype=f32) : f32[64,128]",
            f"  s{k} = sum(p{k}, dims=(1,), dtype=f32) : f32[64]",
            f"  b{k} = broadcast(s{k}, shape=(64, 128), dims=(0,)) : f32[64,128]",
            f"  d{k} = sub(p{k}, b{k}) : f32[64,128]",
            f"  e{k} = exp(d{k}) : f32[64,128]",
        ]
        x = f"e{k}"
    return parse_graph("\n".join(["forward(x: f32[64,128]) {", *lines, f"  return {x}", "}"]))


def test_equal_layers_are_evaluated_once():
    evaluations: list[int] = []
    for count in (2, 12):
        oracle, calls = cost_oracle(host_target(2), Machine()), 0

        def evaluate(kernel: Kernel, device: str) -> Evaluation:
            nonlocal calls
            calls += 1
            return oracle.evaluate(kernel, device)  # noqa: B023

        part = partition(
            layers(count), RegionEvaluator(evaluate, oracle.costs_of, oracle.lowerings)
        )
        assert sum(not r.library for r in part.regions) == count
        evaluations.append(calls)
    assert evaluations[0] == evaluations[1] > 0
