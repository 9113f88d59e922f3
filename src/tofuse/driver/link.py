"""Link a program: its plan, machine code, and the Python callables that the plan names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tofuse.backends.aten.run_ops import checked_executor_callable, eager_region_callable
from tofuse.backends.code_library import CodeLibrary
from tofuse.backends.cpu.llvm.parallel_driver import PARALLEL_DRIVER
from tofuse.backends.cpu.runtime.gemm_launch import GemmLauncher
from tofuse.backends.cpu.runtime.group_launch import DRIVER_FUNCTIONS, DriverFunctions
from tofuse.backends.cpu.runtime.launch import Launcher
from tofuse.backends.launcher import KernelLauncher
from tofuse.backends.target import LaunchGroup, Recorder
from tofuse.cache.artifact import Artifact
from tofuse.config import GRAPH_MODES, Config
from tofuse.cost.call_overhead import COMPILED_IS_FASTER, Prediction
from tofuse.disk_store import store_of
from tofuse.driver.assign_executors import Assignment
from tofuse.driver.codegen import CodegenContext, GeneratedKernel
from tofuse.driver.load_kernels import LoadedKernels
from tofuse.driver.verify_kernels import VerifiedKernel
from tofuse.ir.plan import Call, Plan
from tofuse.ir.region import Region
from tofuse.plan.build_steps import inline_reversed_views
from tofuse.runtime.execute import CompiledPlan, PlanCode, Tensor, load_plan, plan_code
from tofuse.runtime.timing import Clock


@dataclass(frozen=True, eq=False)
class LinkedProgram:
    """A program that can run, and its data for the report."""

    plan: Plan
    launchers: Sequence[KernelLauncher]
    gpu_groups: Mapping[int, LaunchGroup]  # by the number of the group
    callables: Mapping[str, Callable[..., object]]  # by the name that the plan calls
    constants: Sequence[Tensor]
    library: CodeLibrary
    config: Config
    recorder: Recorder | None  # if a graph of its launches can be recorded
    generated: Sequence[GeneratedKernel]
    assigned: Mapping[Region, Assignment]
    notes: Sequence[str]
    prediction: Prediction = COMPILED_IS_FASTER

    def load(self, clock: Clock | None) -> CompiledPlan:
        """Return the program as a callable; with a clock, it times its steps."""
        functions = self.library.load(PARALLEL_DRIVER, DRIVER_FUNCTIONS, store_of(self.config))
        driver = DriverFunctions(*functions)
        code = self.code if clock is None else None

        def load_with(functions: Mapping[str, Callable[..., object]]) -> CompiledPlan:
            callables = {**self.callables, **functions}
            arguments = self.plan, self.launchers, driver, self.constants, callables
            return load_plan(*arguments, clock, code, self.gpu_groups)

        if clock is not None or self.recorder is None or self.config.mode not in GRAPH_MODES:
            return load_with({})
        return self.recorder(load_with, self.plan, len(self.constants))

    @cached_property
    def code(self) -> PlanCode:
        """The plan as Python code."""
        return plan_code(self.plan, self.launchers)

    @property
    def artifact(self) -> Artifact | None:
        """The serializable program; None if it calls Python or has a GPU kernel."""
        if any(isinstance(s, Call) and s.target in self.callables for s in self.plan.steps):
            return None
        codes = [x.code for x in self.launchers if isinstance(x, (Launcher, GemmLauncher))]
        if len(codes) < len(self.launchers):
            return None
        constants = tuple(self.constants)
        return Artifact(self.plan, self.code, tuple(codes), constants, prediction=self.prediction)


def executor_targets(assigned: Mapping[Region, Assignment]) -> dict[Region, str]:
    """Return the name of a plan's call for each region that a registered executor runs."""
    regions = [r for r, a in assigned.items() if a.executor is not None]
    return {r: f"{assigned[r].label(r.ops[0])}_{k}" for k, r in enumerate(regions)}


def python_callables(
    context: CodegenContext,
    loaded: LoadedKernels,
    launched: Collection[Region],
    assigned: Mapping[Region, Assignment],
) -> dict[str, Callable[..., object]]:
    """Return the functions that a plan can call besides kernels and operators, by name.

    `region<k>` runs region k, which is not among the `launched` ones, op by op, or its kernel with
    verification. The other names are those of registered executors.
    """
    part = context.partition
    callables: dict[str, Callable[..., object]] = {}
    for k, region in enumerate(part.regions):
        if not region.library and region not in launched:
            whole = inline_reversed_views(region, part)
            if region in loaded.bindings:
                binding = loaded.bindings[region]
                launch = loaded.launchers[binding.kernel]
                callables[f"region{k}"] = VerifiedKernel(whole, binding, launch, context)
            else:
                callables[f"region{k}"] = eager_region_callable(whole)
    for region, name in executor_targets(assigned).items():
        executor = assigned[region].executor
        assert executor is not None
        callables[name] = checked_executor_callable(
            assigned[region].name, region.ops[0], executor.run
        )
    return callables
