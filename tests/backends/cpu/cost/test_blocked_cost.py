"""The cost of blocked contractions: arithmetic, packs, and axes that are unrolled."""

from dataclasses import replace

import pytest

from tests.backends.cpu.llvm.matmul.test_blocked_kernel import GROUPED, LINEAR
from tests.ir.test_parse_blocked import TARGET, blocks
from tofuse.backends.cpu.cost.blocked_cost import blocked_cost
from tofuse.cost.machine import default_machine

MACHINE = default_machine(2, 16)


def linear(m, n, k):
    return LINEAR.format(m=m, n=n, k=k, w=f"({k})*n + k", x=f"({k})*m + k", y=f"({n})*m + n")


def us(text, machine=MACHINE, target=TARGET):
    return blocked_cost(blocks(text, target), machine).us


@pytest.mark.parametrize("sizes", [(64, 512, 512), (200, 1000, 300)])
def test_it_grows_with_each_size(sizes):
    base = us(linear(*sizes))
    for k in range(3):
        larger = [2 * s if k == i else s for i, s in enumerate(sizes)]
        assert 1.2 * base < us(linear(*larger)) < 2.6 * base


def test_large_products_cost_their_arithmetic():
    m, n, k = 2048, 2048, 2048
    arithmetic = 2 * m * n * k / (2 * MACHINE.flops * 1.65) / 1e3
    assert arithmetic < us(linear(m, n, k)) < 1.3 * arithmetic
    faster = replace(MACHINE, flops=2 * MACHINE.flops)
    assert us(linear(m, n, k), faster) < 0.65 * us(linear(m, n, k))


def test_an_unrolled_axis_counts_once():
    """Half of the elements of two codes in a byte are not half of the work."""
    m, n, depth = 40, 1024, 4096
    sizes = {"k": depth, "g": 128, "j": 16, "gj": depth // 2, "j2": 32}
    packed, plain = us(GROUPED.format(m=m, n=n, **sizes)), us(linear(m, n, depth))
    assert packed < 1.6 * plain
