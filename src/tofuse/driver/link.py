"""Link a program: its plan, machine code, and the Python callables that the plan names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tofuse.backends.aten.run_ops import checked_executor_callable, eager_region_callable
from tofuse.backends.llvm.load import CODE
from tofuse.backends.llvm.parallel_driver import PARALLEL_DRIVER
from tofuse.cache.artifact import Artifact
from tofuse.config import Config
from tofuse.cost.machine_source import store_of
from tofuse.driver.assign_executors import Assignment
from tofuse.driver.codegen import CodegenContext, GeneratedKernel
from tofuse.driver.kernel_verifier import kernel_verifier
from tofuse.driver.load_kernels import LoadedKernels
from tofuse.ir.plan import Call, Plan
from tofuse.ir.region import Region
from tofuse.plan.build_steps import inline_reversed_views
from tofuse.runtime.clock import Clock
from tofuse.runtime.execute import CompiledPlan, Tensor, load_plan
from tofuse.runtime.gemm_launch import GemmLauncher
from tofuse.runtime.launch import Launcher

PythonCallables = Mapping[str, Callable[..., object]]  # by the name that a plan calls


@dataclass(frozen=True, eq=False)
class LinkedProgram:
    """A program that can run, and its data for the report.

    `load` returns the callable; with a clock, the callable times its steps. `artifact` is the
    serializable program; None if a part cannot be serialized.
    """

    load: Callable[[Clock | None], CompiledPlan]
    generated: Sequence[GeneratedKernel]
    assigned: Mapping[Region, Assignment]
    plan: Plan
    notes: Sequence[str]
    artifact: Artifact | None


def executor_targets(assigned: Mapping[Region, Assignment]) -> dict[Region, str]:
    """Return the name of a plan's call for each region that a registered executor runs."""
    regions = [r for r, a in assigned.items() if a.executor is not None]
    return {r: f"{assigned[r].label(r.ops[0])}_{k}" for k, r in enumerate(regions)}


def python_callables(
    context: CodegenContext,
    loaded: LoadedKernels,
    verified: frozenset[Region],
    assigned: Mapping[Region, Assignment],
) -> dict[str, Callable[..., object]]:
    """Return the functions that a plan can call besides kernels and operators, by name.

    `region<k>` runs region k op by op, or its kernel with verification. The other names are
    those of registered executors.
    """
    part, verify = context.partition, kernel_verifier(context)
    callables: dict[str, Callable[..., object]] = {}
    for k, region in enumerate(part.regions):
        if not region.library:
            whole = inline_reversed_views(region, part)
            callables[f"region{k}"] = (
                verify(whole, loaded.bindings[region], loaded.launchers)
                if region in verified
                else eager_region_callable(whole)
            )
    for region, name in executor_targets(assigned).items():
        executor = assigned[region].executor
        assert executor is not None
        callables[name] = checked_executor_callable(
            assigned[region].name, region.ops[0], executor.run
        )
    return callables


def loader(
    plan: Plan,
    loaded: LoadedKernels,
    callables: PythonCallables,
    constants: Sequence[Tensor],
    config: Config,
) -> Callable[[Clock | None], CompiledPlan]:
    """Return a function that makes the plan callable."""
    (parallel_driver,) = CODE.load(PARALLEL_DRIVER, ["kernel"], store_of(config))

    def load_program(clock: Clock | None) -> CompiledPlan:
        return load_plan(plan, loaded.launchers, parallel_driver, constants, callables, clock)

    return load_program


def program_artifact(
    plan: Plan, loaded: LoadedKernels, callables: PythonCallables, constants: Sequence[Tensor]
) -> Artifact | None:
    """Return the serializable program; None if it calls Python or has a GPU kernel."""
    if any(isinstance(s, Call) and s.target in callables for s in plan.steps):
        return None
    codes = [x.code for x in loaded.launchers if isinstance(x, (Launcher, GemmLauncher))]
    if len(codes) < len(loaded.launchers):
        return None
    return Artifact(plan, tuple(codes), tuple(constants))
