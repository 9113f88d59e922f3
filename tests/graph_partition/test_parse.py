"""Partitions print and parse."""

import pytest

from tofuse.analysis.alias import MemRef
from tofuse.errors import ParseError
from tofuse.graph_partition import show_partition
from tofuse.graph_partition.parse import parse_partition
from tofuse.ir.region import Verdict, show_verdict
from tofuse.ir.rules import Rule

EXAMPLE = """\
graph(x: f32[4,6], i: i64[4]) {
  v0 = exp(x) : f32[4,6]
  v1 = permute(v0, dims=(1, 0)) : f32[6,4]
  v2 = opaque(v1, target='aten.mm.default', args='$0, $0') : f32[6,4]
  v3 = reshape(v1, shape=(24,)) : f32[24]
  v4 = neg(v3) : f32[24]
  opaque(v4, target='my.log', args='$0', effect=True)
  return v2, v4
}
kernel exp_0: v0 -> v0
call mm_1: v2 -> v2
kernel neg_2: v1 v3 v4 -> v4
call log_3: #5 ->
memref v1 = v0 + 0 {1,6}
no_memref v3
rounded v0 v3
edge v0 -> v2 not fused: library call; bytes 0; launches 0; recompute 0.0; us 0.0 # at a b.py:12
edge v0 -> v4 fused: elementwise over common axes, as requested by fuse(); bytes 192; launches 1; recompute 1.5; us -5.25"""  # noqa: E501


def test_example():
    part = parse_partition(EXAMPLE)
    assert show_partition(part) == EXAMPLE
    v0, v1, v3 = part.graph.ops[0].result, part.graph.ops[1].result, part.graph.ops[3].result
    assert part.aliases.memrefs[v1] == MemRef(v0, 0, (1, 6)) and v3 not in part.aliases.memrefs
    assert [r.library for r in part.regions] == [False, True, False, True]
    assert part.regions[2].inputs == (v0,) and part.regions[3].outputs == ()
    assert part.rounded == {"v0", "v3"}
    assert part.verdicts[1].reason == Rule.ELEMENTWISE() and part.verdicts[1].requested
    assert part.verdicts[1].predicted_us == -5.25


def test_a_verdict_prints_all_counts():
    verdict = Verdict("a", "b", True, Rule.SAME_LOOPS(), 4, 1, 0.5, 2.0)
    assert show_verdict(verdict) == (
        "edge a -> b fused: same loops; bytes 4; launches 1; recompute 0.5; us 2.0"
    )


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("rule", Rule)
def test_every_reason_parses(rule: Rule, fused: bool):
    graph = "graph(x: f32[2]) {\n  return x\n}"
    reason = rule(*(f"{k}; is: a" for k in range(rule.value.count("{}"))))
    verdict = Verdict("a", "b", fused, reason, requested=fused)
    (parsed,) = parse_partition(f"{graph}\n{show_verdict(verdict)}").verdicts
    assert parsed == verdict


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("kernel k: v9 -> v0", "line 5, column 11: v9 is not an op"),
        ("kernel k: v0 -> v9", "line 5, column 17: v9 is not defined"),
        ("memref v9 = v0 + 0 {1}", "line 5, column 8: v9 is not defined"),
        (
            "edge x -> v0 fused: luck; bytes 0; launches 0; recompute 0.0; us 0.0",
            "there is no rule 'luck'",
        ),
        ("memref v0 = x + 0 {1}", "not the memory that the graph gives v0"),
        ("something else", "neither a region nor a memref nor a verdict"),
    ],
)
def test_parse_errors_name_the_cause(line: str, message: str):
    graph = "graph(x: f32[2]) {\n  v0 = neg(x) : f32[2]\n  return v0\n}"
    with pytest.raises(ParseError) as caught:
        parse_partition(f"{graph}\n{line}")
    assert message in str(caught.value)
