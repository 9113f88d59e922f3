"""Which bytes each iteration of a nest's outermost loop accesses."""

import itertools
import random

import pytest

from tests.support.kernels import kernel
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.row_accesses import row_accesses
from tofuse.ir.affine import AffineExpr
from tofuse.ir.kernel import InRange, Load, Store
from tofuse.ir.parse_schedule import parse_schedule

STENCIL = """kernel k(x0: in f32, x1: in f64, y2: out f32) over i0:{rows} i1:{columns} {{
  v0 = in_range [i0] {first} {end} : b1
  v1 = in_range [i1] 1 {columns} if v0 : b1
  v2 = load x0[({columns})*i0 + i1 + {offset}] if v1 : f32
  v3 = load x0[({columns})*i0 + i1] : f32
  v4 = load x1[(-1)*i0 + (2)*i1 + {rows}] : f64
  v5 = convert v4 of f64 : f32
  v6 = add v2 v3 of f32 : f32
  v7 = add v6 v5 of f32 : f32
  store y2[({columns})*i0 + i1] v7 : f32
}}"""
SCHEDULES = ("order i0 i1; parallel 1", "order i0/4 i0 i1; parallel 1", "order i1 i0; parallel 2")


def nest_of(text, loops="order i0 i1; parallel 1"):
    return build_nest(kernel(text), parse_schedule(f"{loops}; vector 1; unroll 1"))


def value(index, point):
    assert isinstance(index, AffineExpr)
    return index.const + sum(c * point[axis] for axis, c in index.terms)


def passes(guard, guards, point):
    if guard is None:
        return True
    g = guards[guard]
    return g.lo <= value(g.index, point) < g.hi and passes(g.guard, guards, point)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("loops", SCHEDULES)
def test_all_accesses_are_in_the_rows_of_their_iteration(loops, seed):
    rng = random.Random(seed)
    rows, columns = rng.randint(1, 9), rng.randint(2, 7)
    first = rng.randint(0, rows - 1)
    numbers = {"rows": rows, "columns": columns, "first": first, "end": rng.randint(first, rows)}
    nest = nest_of(STENCIL.format(offset=rng.randint(-9, 9), **numbers), loops)
    found, k = row_accesses(nest), nest.kernel
    assert found is not None
    outer = nest.phases[0].band[0]
    guards = {s.name: s for s in k.body if isinstance(s, InRange)}
    axes = [a.name for a in k.axes]
    for indices in itertools.product(*(range(a.extent) for a in k.axes)):
        point = dict(zip(axes, indices, strict=True))
        iteration = point[outer.axis] // max(1, outer.strip)
        assert iteration < found.iterations
        for s in k.body:
            if not isinstance(s, (Load, Store)):
                continue
            if isinstance(s, Load) and not passes(s.guard, guards, point):
                continue
            number = next(n for n, b in enumerate(k.buffers) if b.name == s.buffer)
            at = value(s.index, point) * k.buffers[number].dtype.itemsize
            own = [a for a in found.accesses if (a.buffer, a.writes) == (number, number == 2)]
            intervals = [a.bytes_of((iteration, iteration + 1)) for a in own]
            assert any(x is not None and x[0] <= at < x[1] for x in intervals)
            assert any(
                a.step <= 0 or a.iterations_of((at, at + 1))[0] <= iteration for a in own
            ) and any(a.step <= 0 or iteration < a.iterations_of((at, at + 1))[1] for a in own)


def test_rows_of_a_stencil_are_exact():
    text = STENCIL.format(rows=8, columns=4, first=1, end=8, offset=-4)
    shown = (
        "8 by 1 reads 0 1 8 16 -12 0 reads 0 0 8 16 0 16 reads 1 0 8 0 8 120 writes 2 0 8 16 0 16"
    )
    assert repr(row_accesses(nest_of(text))) == shown


REJECTED = {
    "a sum over the rows": """kernel k(x0: in f32, y1: out f32) over i0:8 i1:4 {
  v0 = load x0[(4)*i0 + i1] : f32
  v1 = reduce sum<i0> v0 : f32
  store y1[i1] v1 : f32
}""",
    "symbolic sizes": """kernel k(x0: in f32, y1: out f32) over i0:s0 i1:4 sizes s0 {
  v0 = load x0[(4)*i0 + i1] : f32
  store y1[(4)*i0 + i1] v0 : f32
}""",
}


@pytest.mark.parametrize("text", REJECTED.values(), ids=REJECTED)
def test_rows_that_cannot_run_by_themselves(text):
    assert row_accesses(nest_of(text)) is None
