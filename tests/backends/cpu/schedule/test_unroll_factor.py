"""The unroll factor: large enough to hide the latency of dependence chains."""

from tests.support.kernels import TARGET, kernel
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.backends.cpu.schedule.unroll_factor import unroll_factor
from tofuse.ir.kernel import iteration_axes


def kernel_text(lines: list[str], stored: str) -> str:
    body = ["v0 = load x0[i0] : f32", *lines, f"store y1[i0] {stored} : f32"]
    return "kernel k(x0: in f32, y1: out f32) over i0:10000 {\n  " + "\n  ".join(body) + "\n}"


def chain(n: int) -> str:
    return kernel_text([f"v{k + 1} = mul v{k} 1.5 of f32 : f32" for k in range(n)], f"v{n}")


def independent(n: int) -> str:
    """Return n products of one value, summed in a tree."""
    lines = [f"v{k + 1} = mul v0 {k}.5 of f32 : f32" for k in range(n)]
    level, made = list(range(1, n + 1)), n
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=False))
        lines += [f"v{made + k} = add v{a} v{b} of f32 : f32" for k, (a, b) in enumerate(pairs, 1)]
        rest = level[2 * len(pairs) :]
        level = [*range(made + 1, made + 1 + len(pairs)), *rest]
        made += len(pairs)
    return kernel_text(lines, f"v{level[0]}")


def chosen_factor(written: str) -> int:
    parsed = kernel(written)
    assert choose_schedule(parsed, TARGET).unroll == unroll_factor(
        parsed, iteration_axes(parsed)[1], "i0"
    )
    return unroll_factor(parsed, iteration_axes(parsed)[1], "i0")


def test_short_bodies_are_unrolled():
    assert chosen_factor(chain(10)) == chosen_factor(independent(6)) == 4


def test_long_chains_are_unrolled_but_parallel_bodies_are_not():
    assert chosen_factor(chain(200)) == 4
    assert chosen_factor(independent(100)) == 1


def test_code_size_is_bounded():
    assert chosen_factor(chain(500)) == 2
    assert chosen_factor(chain(1000)) == 1
