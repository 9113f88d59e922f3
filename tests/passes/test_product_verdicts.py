"""Verdicts of products whose second factor is computed."""

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import tofuse
from benchmarks.workloads.decodes import FORMATS
from tofuse.ir.rules import Rule

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def verdicts(program: Callable, *args, **options) -> set[str]:
    """Return the rules of the edges of products that the library computes."""
    report = tofuse.explain(program, **options)(*args)
    return {v.rule for v in report.verdicts if not v.fused}


def test_verdicts_say_why_a_product_stays_in_the_library():
    def layer(x, w, s):
        return F.linear(x, w.float() * s)

    def shared(x, w, s):
        weight = w.float() * s
        return F.linear(x, weight), weight

    x, codes = torch.randn(24, 64), FORMATS["int8"].make(32, 64)
    assert verdicts(shared, x, *codes) == {str(Rule.SHARED_WEIGHT())}
    assert verdicts(layer, x, *codes, precision="eager") == {str(Rule.ORDER_OF_SUMS())}
    assert not verdicts(layer, x, *codes)
    few = torch.randint(-9, 9, (40, 8), dtype=torch.int8), torch.rand(40, 1)
    (slower,) = verdicts(layer, torch.randn(4096, 8), *few)
    assert re.fullmatch(
        r"library call: [\d,.]+ us for .*; that kernel would take [\d,.]+ us", slower
    )
