"""Check the text, verifier, idempotence and numerical results of every case of every pass."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.support.cases import Case, accept, read_cases
from tests.support.numbers import (
    assert_same_bits,
    plain_inputs,
    sizes_of,
    special_inputs,
)
from tests.support.rename import rename
from tofuse.driver.pipeline import GRAPH_PASSES, run_graph_passes
from tofuse.ir.graph import Graph, Value, show_graph
from tofuse.ir.parse_graph import parse_graph
from tofuse.ops.check_graph import check_graph
from tofuse.ops.reference import run_graph
from tofuse.passes.contract_products import contract_products
from tofuse.passes.reroll.reroll import reroll
from tofuse.passes.rewrite import Replacement, Rewriter, RewriteRule

FILES = sorted(Path(__file__).parent.glob("*.txt"))
CASES = [case for file in FILES for case in read_cases(file)]


def contract_all_products(graph: Graph) -> Graph:
    return contract_products(graph, {r for op in graph.ops for r in op.results})


PASSES = {p.__name__: p for p in (reroll, *GRAPH_PASSES, run_graph_passes)}
PASSES["contract_products"] = contract_all_products

# These change the order of additions.
INEXACT_PASSES = (
    "contract_products",
    "matvec",
    "batch_branches",
    "closed_form_reductions",
    "pad_add_to_concat",
    "run_graph_passes",
)

INPUT_DRAWS = 24


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, request: pytest.FixtureRequest):
    pass_ = PASSES[case.file.stem]
    graph = parse_graph(case.before)
    assert show_graph(graph) == case.before
    check_graph(graph)

    result = pass_(graph)
    check_graph(result)
    text = show_graph(rename(result, inputs=False))
    if request.config.getoption("--accept"):
        accept(case, text)
    else:
        assert text == case.after
    assert show_graph(parse_graph(text)) == text
    assert pass_(result) is result, "a second run changes the graph"
    if case.before == case.after:
        assert result is graph, "an unchanged graph must be the same object"
    assert_same_results(case, graph, result)


def assert_same_results(case: Case, graph: Graph, result: Graph) -> None:
    generator = torch.Generator().manual_seed(7)
    exact = case.file.stem not in INEXACT_PASSES
    draw: Callable[[Graph, torch.Generator], dict[Value, torch.Tensor]]
    draw = special_inputs if exact else plain_inputs
    for _ in range(INPUT_DRAWS if exact else 2):
        inputs = draw(graph, generator)
        expected = outputs(graph, inputs)
        for want, got in zip(expected, outputs(result, inputs), strict=True):
            if exact:
                assert_same_bits(want, got)
            else:
                torch.testing.assert_close(got, want, equal_nan=True)


def outputs(graph: Graph, inputs: dict[Value, torch.Tensor]) -> list[torch.Tensor]:
    values = run_graph(graph, {v: x.clone() for v, x in inputs.items()}, sizes_of(graph))
    return [values[v] for v in graph.outputs if v is not None]


@pytest.mark.parametrize("name", [p.__name__ for p in GRAPH_PASSES])
def test_every_pass_has_cases_and_refusals(name: str):
    cases = [case for case in CASES if case.file.stem == name]
    assert any(case.before != case.after for case in cases)
    assert any(case.before == case.after for case in cases)


@pytest.mark.parametrize("name", [p.__name__ for p in GRAPH_PASSES])
def test_every_rule_fires(name: str, monkeypatch: pytest.MonkeyPatch):
    module = sys.modules[PASSES[name].__module__]
    table = rules_table(module)
    fired: set[tuple[str, str]] = set()
    recorded_rules = {
        kind: tuple(recording(rule, (kind, rule.__name__), fired) for rule in rules)
        for kind, rules in table.items()
    }
    monkeypatch.setattr(module, "RULES", recorded_rules, raising=False)
    for case in CASES:
        if case.file.stem == name:
            PASSES[name](parse_graph(case.before))
    rules = {rule.__name__ for rules in table.values() for rule in rules}
    assert rules - {rule for _, rule in fired} == set()


def rules_table(module: ModuleType) -> dict[str, tuple[RewriteRule, ...]]:
    table = vars(module).get("RULES", {})
    assert isinstance(table, dict)
    return table


def recording(rule: RewriteRule, key: tuple[str, str], fired: set[tuple[str, str]]) -> RewriteRule:
    def recorded(op, rewriter: Rewriter) -> Replacement | None:
        found = rule(op, rewriter)
        if found is not None:
            fired.add(key)
        return found

    return recorded
