"""Assign an executor to each region: a generated kernel, PyTorch, or a registered executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tofuse.analysis.alias import is_eliminated_concat
from tofuse.backends.target import ChosenSchedule
from tofuse.cost.library import library_us
from tofuse.cost.machine import Machine
from tofuse.cost.memory_traffic import region_bytes
from tofuse.driver.choice import ATEN, Choice
from tofuse.driver.codegen import GeneratedKernel
from tofuse.driver.oracle import CostOracle
from tofuse.graph_partition import Partition
from tofuse.ir.executor import LIBRARY, NO_EXECUTOR, Executor, Executors, Request, Tensor
from tofuse.ir.graph import Op, Value
from tofuse.ir.region import Region
from tofuse.ops.reference import TO_TORCH
from tofuse.runtime.out_variants import out_variant

ONLY_PYTORCH = "only PyTorch has this operator"
NO_KERNELS = "generated kernels are not among the executors"


@dataclass(frozen=True)
class Assignment:
    """An executor's name, the reason for it, its predicted microseconds, and it if registered."""

    name: str
    why: str
    us: float
    executor: Executor | None = None

    def label(self, op: Op) -> str:
        """Return the operator's name in a plan when this executor runs it."""
        return f"{self.name}_{op.attr('target')}".replace(".", "_")


def assign_library_calls(
    part: Partition, executors: Executors, machine: Machine, oracle: CostOracle
) -> dict[Region, Assignment]:
    """Return the assignment of each library region."""
    library = [r for r in part.regions if r.library]
    machines = {r: oracle.backend_of_region(r).call_machine(machine) for r in library}
    return {r: _assign_call(r, executors, machines[r]) for r in library}


def _assign_call(region: Region, executors: Executors, machine: Machine) -> Assignment:
    op = region.ops[0]
    if is_eliminated_concat(op):
        return Assignment(NO_EXECUTOR, "its operands are written directly into it", 0.0)
    pooled = out_variant(str(op.attr("target"))) is not None
    expected = library_us(region, machine, pooled)
    operands = map(_tensor, dict.fromkeys(op.inputs))
    request = Request(str(op.attr("target")), tuple(operands))
    chosen, why = executors.choose(request, expected)
    if chosen is None:
        default_reason = ONLY_PYTORCH if executors.allows_kernels else NO_KERNELS
        return Assignment(LIBRARY, why or default_reason, expected)
    us = chosen.cost_us(request)
    return Assignment(chosen.name, why, expected if us is None else us, chosen)


def requested_kernels(
    part: Partition, choices: Mapping[Region, Choice], executors: Executors
) -> tuple[dict[Region, ChosenSchedule], dict[Region, str]]:
    """Return the regions that become kernels, with their schedules, and why others do not.

    A schedule of None stands for the one that the heuristics choose.
    """
    requested: dict[Region, ChosenSchedule] = {}
    rejected: dict[Region, str] = {}
    for r in (r for r in part.regions if not r.library):
        choice = choices.get(r, Choice())
        if choice.kind == ATEN or not executors.allows_kernels:
            rejected[r] = choice.why if choice.kind == ATEN else NO_KERNELS
        else:
            requested[r] = choice.schedule
    return requested, rejected


def assign_kernels_and_fallbacks(
    part: Partition,
    running: Sequence[GeneratedKernel],
    rejected: Mapping[Region, str],
    choices: Mapping[Region, Choice],
    machine: Machine,
    oracle: CostOracle,
) -> dict[Region, Assignment]:
    """Return the assignment of each region that is no library call."""
    assigned = {}
    for g in running:
        why = choices[g.region].why if g.region in choices else "generated code"
        backend = oracle.backend_of_region(g.region)
        nbytes = region_bytes(g.region, part.aliases.memrefs)
        us = backend.predicted_us(g.call, nbytes, machine)
        assigned[g.region] = Assignment(backend.executor, why, us)
    for r in (r for r in part.regions if not r.library and r not in assigned):
        why = rejected.get(r, "its kernel does not compile")
        call_machine = oracle.backend_of_region(r).call_machine(machine)
        assigned[r] = Assignment(LIBRARY, why, library_us(r, call_machine))
    return assigned


def tuning_notes(choices: Mapping[Region, Choice]) -> list[str]:
    """Return the notes of all choices."""
    return list(dict.fromkeys(note for choice in choices.values() for note in choice.notes))


def _tensor(v: Value) -> Tensor:
    """Return an operand of a library call as executors see it."""
    shape = tuple(d if isinstance(d, int) else None for d in v.shape)
    dtype = str(TO_TORCH.get(v.dtype, "other")).removeprefix("torch.")
    return Tensor(shape, dtype, v.type.device)
