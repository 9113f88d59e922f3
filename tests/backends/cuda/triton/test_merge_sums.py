"""The order in which statements are emitted, with independent sums together."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.kernels import kernel
from tofuse.backends.cuda.triton.merge_sums import Step, merge_sums
from tofuse.cost.thresholds import MAX_MERGED_SUMS
from tofuse.ir.kernel import WRITES, Reduce, Stmt

TWO_LEVELS = """kernel k(x: in f32, y: out f32) over i0:4 i1:8 {
  v0 = load x[(8)*i0 + i1] : f32
  v1 = reduce sum<i1> v0 : f32
  v2 = mul v0 v0 of f32 : f32
  v3 = reduce sum<i1> v2 : f32
  v4 = reduce amax<i1> v2 : f32
  v5 = sub v0 v1 of f32 : f32
  v6 = reduce sum<i1> v5 : f32
  v7 = add v3 v6 of f32 : f32
  v8 = add v7 v4 of f32 : f32
  store y[i0] v8 : f32
}"""


def sum_key(r: Reduce) -> str | None:
    return ",".join(r.over) if r.op == "sum" else None


def name(step: Step) -> str:
    if isinstance(step, tuple):
        return "+".join(r.name for r in step)
    return step.buffer if isinstance(step, WRITES) else step.name


def test_independent_sums_come_together():
    steps = [name(s) for s in merge_sums(kernel(TWO_LEVELS).body, sum_key)]
    assert steps == ["v0", "v2", "v4", "v1+v3", "v5", "v6", "v7", "v8", "y"]


@given(st.data())
def test_operands_come_first(data: st.DataObject):
    lines = ["v0 = load x[(8)*i0 + i1] : f32"]
    for n in range(1, data.draw(st.integers(1, 20))):
        a, b = (f"v{data.draw(st.integers(0, n - 1))}" for _ in range(2))
        is_sum = data.draw(st.booleans())
        right = f"reduce sum<i1> {a}" if is_sum else f"add {a} {b} of f32"
        lines.append(f"v{n} = {right} : f32")
    last = f"v{len(lines)} = reduce sum<i1> v{len(lines) - 1} : f32"
    store = f"store y[i0] v{len(lines)} : f32"
    text = "\n".join([*lines, last, store])
    k = kernel(f"kernel k(x: in f32, y: out f32) over i0:4 i1:8 {{\n{text}\n}}")
    steps = merge_sums(k.body, sum_key)
    members = [s for step in steps for s in (step if isinstance(step, tuple) else (step,))]
    assert sorted(map(id, members)) == sorted(map(id, k.body))
    seen: set[str] = set()
    for step in steps:
        group: tuple[Stmt, ...] = step if isinstance(step, tuple) else (step,)
        assert len(group) <= MAX_MERGED_SUMS
        assert all(u in seen for s in group for u in s.uses)
        seen |= {s.name for s in group if not isinstance(s, WRITES)}
