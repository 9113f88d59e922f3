"""Choose the matrix products that kernels compute, by timing each with the kernels around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from tofuse.analysis.alias import is_view
from tofuse.backends.launcher import TimedCall
from tofuse.disk_store import store_of
from tofuse.driver.choice import Choice, choose
from tofuse.driver.codegen import CodegenContext
from tofuse.driver.isolate_region import is_static, with_views, without_locations
from tofuse.driver.oracle import CostOracle
from tofuse.graph_partition import Partition
from tofuse.ir.graph import Graph, Op, Value, show_graph, substitute_values
from tofuse.ir.region import Region
from tofuse.passes.contract_products import contract_products, is_contractible
from tofuse.report.repro import region_graph

IN_LIBRARY, IN_KERNEL = "library", "kernel"
BuildGraph = Callable[[Graph], "TimedCall | None"]  # None if the graph cannot be built


def measured_products(
    context: CodegenContext, build: BuildGraph, key: Sequence[str]
) -> dict[Value, Choice]:
    """Return the choice for the result of each product that kernels around it could compute.

    A product competes with its neighbour: as a library call beside a kernel, and as one kernel
    of both. Choices stored on disk are not measured again.
    """
    part, oracle, store = context.partition, context.oracle, store_of(context.config)
    choices: dict[Value, Choice] = {}
    users = part.graph.users()
    for kernel, neighbours in _neighbours(part, oracle):
        in_kernels = {v for v, choice in choices.items() if choice.kind == IN_KERNEL}
        products = [r for r in neighbours if r.ops[0].result not in in_kernels]
        results = {r.ops[0].result for r in products}
        if not products:
            continue
        ops = with_views((op for r in (kernel, *products) for op in r.ops), part.graph)
        region = Region("product", ops, _escaping(ops, part.graph, users))
        graph = region_graph(region, part.aliases.memrefs)
        renamed = {v: replace(v, name=f"v{k}") for k, v in enumerate(graph.values())}
        graph = without_locations(substitute_values(graph, renamed))
        contracted = contract_products(graph, {renamed[v] for v in results})
        candidates = [
            (Choice(IN_LIBRARY), partial(build, graph)),
            (Choice(IN_KERNEL), partial(build, contracted)),
        ]
        backend = oracle.backend_of_region(kernel)
        full_key = (*backend.timing_key(), *key, show_graph(graph))
        try:
            choice = choose(candidates, full_key, store, backend.time_calls)
        except torch.OutOfMemoryError:
            continue  # the library computes it
        choices |= dict.fromkeys(results, choice)
    return choices


def product_notes(choices: dict[Value, Choice]) -> list[str]:
    """Return a note on each product that was measured."""
    where = {IN_LIBRARY: "PyTorch's library", IN_KERNEL: "a kernel"}
    return [f"{v.name} is computed by {where[c.kind]}: {c.why}" for v, c in choices.items()]


def _neighbours(part: Partition, oracle: CostOracle) -> Iterator[tuple[Region, tuple[Region, ...]]]:
    """Yield each kernel that may contract products: with its producers, then with its readers."""
    made_by = {v: r for r in part.regions for op in r.ops for v in op.results}

    def maker(v: Value) -> Region | None:
        return made_by.get(part.aliases.view_chain(v)[-1])

    products = [r for r in part.regions if _is_product(r)]
    for kernel in (r for r in part.regions if not r.library):
        if not oracle.backend_of_region(kernel).contracts_products or not is_static(kernel):
            continue
        read = {maker(v) for v in kernel.inputs}
        before = tuple(r for r in products if r in read)
        after = tuple(r for r in products if any(maker(v) is kernel for v in r.inputs))
        yield from ((kernel, found) for found in (before, after) if found)


def _is_product(region: Region) -> bool:
    """Whether a region is a library call that a kernel could compute."""
    (first, *_) = region.ops
    return region.library and is_contractible(first) and is_static(region)


def _escaping(
    ops: Sequence[Op], graph: Graph, users: Mapping[Value, Sequence[Op]]
) -> tuple[Value, ...]:
    """Return the values other than views that are read outside of some ops."""
    members, returned = set(ops), set(graph.outputs)
    computed = [v for op in ops if not is_view(op) for v in op.results]
    return tuple(v for v in computed if v in returned or not members.issuperset(users.get(v, ())))
