"""Advice on the rules of verdicts."""

import pytest

import tofuse
from tests.support.sample_reports import block, block_arguments
from tofuse.ir.rules import Rule
from tofuse.report.advice import ADVICE, group_by_advice

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def test_every_rule_has_advice():
    assert list(Rule) == sorted(ADVICE, key=list(Rule).index)
    titles = [a.title for a in dict.fromkeys(ADVICE.values())]
    assert len(titles) == len(set(titles))


def test_groups_exclude_fused_verdicts():
    graph = tofuse.explain(block)(*block_arguments()).backward.graphs[0]
    groups = group_by_advice(graph.verdicts)
    assert sum(len(group) for _, group in groups) == sum(not v.fused for v in graph.verdicts) > 1
    sizes = [len(group) for _, group in groups]
    assert sizes == sorted(sizes)[::-1]
