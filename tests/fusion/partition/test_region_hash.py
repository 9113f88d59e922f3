"""Regions alike are asked about once, and others are told apart."""

import pytest

from tofuse.analysis.alias import storages
from tofuse.backends.llvm.load import host_target
from tofuse.cost.nest import Machine
from tofuse.driver.oracle import Judge
from tofuse.fusion.partition.partitioner import partition
from tofuse.fusion.partition.region_hash import likeness
from tofuse.ir.graph import Graph
from tofuse.ir.graph.parse import parse_graph
from tofuse.ir.kernel import Kernel
from tofuse.ir.region import Region


def whole(text: str, halves: tuple[str, ...] = ()) -> object:
    """What tells a region of all ops from others."""
    graph = parse_graph(text)
    region = Region("r", graph.ops, tuple(v for v in graph.outputs if v is not None))
    return likeness(region, storages(graph), halves)


PLAIN = """forward(x: f32[8,16], y: f32[8,16]) {
  a = mul(x, 2.0) : f32[8,16]
  b = add(a, y) : f32[8,16]
  return b
}"""


def test_names_do_not_matter():
    assert whole(PLAIN) == whole(PLAIN.replace("x", "p").replace("a =", "q =").replace("(a", "(q"))


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
def test_what_matters(old: str, new: str):
    text = PLAIN.replace(old, new)
    assert text != PLAIN and whole(text) != whole(PLAIN)


def test_what_is_rounded_matters():
    text = PLAIN.replace("f32", "bf16")
    assert whole(text, ("a",)) != whole(text)
    assert whole(text, ("a",)) == whole(text.replace("a =", "q =").replace("(a", "(q"), ("q",))


def test_zeros_have_signs_and_truth_is_no_number():
    texts = [
        f"""forward() {{
  a = full(value={v}, shape=(4,), dtype=f32) : f32[4]
  return a
}}"""
        for v in ("0.0", "-0.0", "0")
    ]
    assert len({whole(t) for t in texts}) == 3


def layers(count: int) -> Graph:
    """Norms one after the other, each of a product that a library makes."""
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


def test_layers_are_asked_about_once():
    asked: list[int] = []
    for count in (2, 12):
        judge, found = Judge(host_target(2), Machine()), 0

        def fits(kernel: Kernel) -> str | None:
            nonlocal found
            found += 1
            return judge.misfit(kernel)  # noqa: B023

        part = partition(layers(count), fits, Machine(), costs=judge.cost)
        assert sum(not r.library for r in part.regions) == count
        asked.append(found)
    assert asked[0] == asked[1] > 0
