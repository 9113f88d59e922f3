"""Intervals of random conditions hold every value of a block, computed by Python's own numbers."""

import itertools
import random
from collections.abc import Callable

import pytest

from tofuse.analysis.intervals import Integers, Interval, IntervalRules
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ir.types import DType

INTEGERS = ("add", "sub", "mul", "minimum", "maximum")
TESTS = ("lt", "le", "gt", "ge", "eq", "ne")
BY_NAME: dict[str, Callable[..., int]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "minimum": min,
    "maximum": max,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "logical_and": lambda x, y: x and y,
    "logical_or": lambda x, y: x or y,
    "logical_not": lambda x: not x,
    "neg": lambda x: -x,
    "abs": abs,
    "where": lambda c, x, y: x if c else y,
}


def random_kernel(rng):
    """Return the text of a kernel of random integers and conditions, and the last condition."""
    lines = ["v0 = iota [(2)*i + 3] : i64", "v1 = iota [j] : i64", "v2 = iota [i + (-1)*j] : i64"]
    numbers = ["v0", "v1", "v2", "4", "0"]
    conditions: list[str] = []
    for n in range(3, 14):
        name, values = f"v{n}", [v for v in numbers if v.startswith("v")]
        kind = rng.randrange(5) if conditions else rng.randrange(3)
        if kind == 0:
            x, y = rng.choice(values), rng.choice(numbers)
            lines.append(f"{name} = {rng.choice(INTEGERS)} {x} {y} of i64 : i64")
            numbers.append(name)
        elif kind == 1:
            op, x = rng.choice(["neg", "abs"]), rng.choice(values)
            lines.append(f"{name} = {op} {x} of i64 : i64")
            numbers.append(name)
        elif kind == 2:
            x, y = rng.choice(values), rng.choice(numbers)
            lines.append(f"{name} = {rng.choice(TESTS)} {x} {y} of i64 : b1")
            conditions.append(name)
        elif kind == 3:
            x, y = rng.choice(conditions), rng.choice(conditions)
            op = rng.choice(["logical_and", "logical_or", "logical_not"])
            args = x if op == "logical_not" else f"{x} {y}"
            lines.append(f"{name} = {op} {args} of b1 : b1")
            conditions.append(name)
        else:
            c, x, y = rng.choice(conditions), rng.choice(values), rng.choice(numbers)
            lines.append(f"{name} = where {c} {x} {y} of i64 : i64")
            numbers.append(name)
    lines.append(f"v14 = eq {rng.choice(values)} 1 of i64 : b1")
    body = "\n".join(f"  {line}" for line in [*lines, "store y[j] v14 : b1"])
    return parse_kernel(f"kernel k(y: out b1) over i:20 j:20 {{\n{body}\n}}")


def values_at(kernel, i, j):
    """Return every value of one iteration."""
    found: dict[str, int] = {}

    def value(arg):
        return found[arg] if isinstance(arg, str) else arg.value

    for stmt in kernel.definitions.values():
        if stmt.name in ("v0", "v1", "v2"):
            found[stmt.name] = {"v0": 2 * i + 3, "v1": j, "v2": i - j}[stmt.name]
        else:
            found[stmt.name] = int(BY_NAME[stmt.op](*map(value, stmt.args)))
    return found


@pytest.mark.parametrize("seed", range(200))
def test_intervals_hold_all_values(seed):
    rng = random.Random(seed)
    kernel = random_kernel(rng)
    first = rng.randrange(20), rng.randrange(20)
    rows, columns = (range(n, rng.randrange(n, 20) + 1) for n in first)
    axes = {"i": Interval(rows[0], rows[-1]), "j": Interval(columns[0], columns[-1])}
    rules = IntervalRules(kernel, axes, Integers())
    points = [values_at(kernel, i, j) for i, j in itertools.product(rows, columns)]
    for name, stmt in kernel.definitions.items():
        interval = rules.of(name)
        assert interval is not None
        low, high = interval
        assert low <= min(p[name] for p in points) and max(p[name] for p in points) <= high
        if stmt.dtype is DType.BOOL:
            assert low in (0, 1) and high in (0, 1)
        if len(points) == 1:
            assert low == high


def test_blocks_off_the_diagonal_are_known():
    kernel = parse_kernel(
        "kernel k(y: out b1) over i:64 j:64 {\n"
        "  v0 = iota [i] : i64\n  v1 = iota [j] : i64\n  v2 = lt v0 v1 of i64 : b1\n"
        "  store y[j] v2 : b1\n}"
    )
    for rows, columns, expected in (
        ((0, 15), (16, 31), (1, 1)),
        ((16, 31), (0, 16), (0, 0)),
        ((0, 15), (15, 20), (0, 1)),
    ):
        axes = {"i": Interval(*rows), "j": Interval(*columns)}
        assert IntervalRules(kernel, axes, Integers()).of("v2") == Interval(*expected)


@pytest.mark.parametrize(
    "line",
    [
        "v1 = convert v0 of i64 : u8",  # wraps
        "v1 = convert v0 of i64 : f32",  # rounds
        "v1 = remainder v0 7 of i64 : i64",
        "v1 = load x[i] : f32",
    ],
)
def test_other_operations_have_no_interval(line):
    kernel = parse_kernel(
        f"kernel k(x: in f32, y: out i64) over i:64 {{\n  v0 = iota [i] : i64\n  {line}\n"
        "  store y[i] v0 : i64\n}"
    )
    assert IntervalRules(kernel, {"i": Interval(0, 63)}, Integers()).of("v1") is None
