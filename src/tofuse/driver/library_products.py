"""Give library calls that are matrix products to our own code where that is faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tofuse.backends.target import Linking
from tofuse.config import Config
from tofuse.cost.library import library_us
from tofuse.cost.machine import Machine
from tofuse.driver.assign_executors import ONLY_PYTORCH, Assignment
from tofuse.driver.codegen import CodegenContext
from tofuse.driver.load_kernels import LoadedKernels
from tofuse.ir.executor import KERNELS, LIBRARY
from tofuse.ir.launch_facts import LaunchFacts
from tofuse.ir.region import Region
from tofuse.ir.rules import Reason, Rule
from tofuse.plan.kernel_binding import KernelBinding


def product_rejection(config: Config) -> Reason | None:
    """Return why no kernel computes products beside other operations; None if kernels may."""
    if config.rounds_as_eager:
        return Rule.ORDER_OF_SUMS()
    is_first = config.executors[0] == KERNELS
    return None if is_first else Rule.EXECUTOR_FIRST(config.executors[0])


def library_products(
    loaded: LoadedKernels,
    assigned: Mapping[Region, Assignment],
    context: CodegenContext,
    machine: Machine,
    linking: Linking,
) -> tuple[LoadedKernels, dict[Region, Assignment]]:
    """Return the kernels with matrix products after them, and the assignments that change.

    Under `verify`, and if "aten" precedes "llvm" among the executors, PyTorch runs all products.
    """
    config = context.config
    order = [n for n in config.executors if n in (KERNELS, LIBRARY)]
    if order[:1] != [KERNELS] or config.verify:
        return loaded, {}
    launchers, bindings = [*loaded.launchers], {**loaded.bindings}
    assignments: dict[Region, Assignment] = {}
    memrefs = context.partition.aliases.memrefs
    for region, current in assigned.items():
        if current.executor is not None:
            continue
        backend = context.oracle.backend_of_region(region)
        product = backend.load_product(region, memrefs, machine, linking)
        if product is None:
            continue
        if isinstance(product, str):
            if current.why == ONLY_PYTORCH:
                why = f"PyTorch's library runs it: {product}"
                assignments[region] = replace(current, why=why)
            continue
        facts = LaunchFacts(None, product.alias_pairs)
        number, arguments, sizes = len(launchers), product.arguments, product.sizes
        bindings[region] = KernelBinding(number, arguments, sizes, facts)
        launchers.append(product.launcher)
        why = product.why if current.why == ONLY_PYTORCH else f"{current.why}; {product.why}"
        us = library_us(region, machine, pooled=True)
        assignments[region] = Assignment(backend.executor, why, us)
    return LoadedKernels(launchers, bindings, loaded.notes), assignments
