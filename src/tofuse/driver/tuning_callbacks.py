"""What the autotuner needs of the compiler: candidates, their schedules, their predicted times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from tofuse.config import Config
from tofuse.cost.machine_source import measured_machine, store_of
from tofuse.cost.nest import nest_cost
from tofuse.driver.autotune import (
    Choice,
    TuningCallbacks,
    apply_choices,
    autotune,
)
from tofuse.driver.codegen import GeneratedKernel, generate_kernel
from tofuse.driver.link import LinkedProgram
from tofuse.ir.nest import Nest
from tofuse.ir.region import Partition, Region
from tofuse.ir.schedule import Schedule, Target
from tofuse.plan.signature import CallSignature
from tofuse.runtime.execute import CompiledPlan, Tensor
from tofuse.schedule.build_nest import build_nest
from tofuse.schedule.schedule_variants import schedule_variants


class BuildProgram(Protocol):
    """`driver.pipeline.build_program`."""

    def __call__(
        self,
        part: Partition,
        signature: CallSignature,
        constants: Sequence[Tensor],
        choices: Mapping[Region, Choice],
        target: Target,
        config: Config,
    ) -> LinkedProgram: ...


def measured_choices(
    part: Partition, target: Target, config: Config, build_program: BuildProgram
) -> dict[Region, Choice]:
    """Return the fastest candidate of each region, measured now or before."""
    quiet = replace(config, strict=True)

    def make(alone: Partition, choices: Mapping[Region, Choice]) -> CompiledPlan:
        given = CallSignature(alone.graph.inputs, alone.graph.outputs, {})
        cut, chosen = apply_choices(alone, choices)
        return build_program(cut, given, (), chosen, target, quiet).load(None)

    def nest_of(alone: Partition, region: Region) -> Nest | None:
        made = generate_kernel(region, alone, frozenset(), target, quiet)
        return (
            made.nest if isinstance(made, GeneratedKernel) and isinstance(made.nest, Nest) else None
        )

    def schedules(alone: Partition, region: Region) -> Sequence[Schedule]:
        first = nest_of(alone, region)
        if first is None:
            return ()
        kernel, machine = first.kernel, measured_machine(target, config)
        nests = [
            build_nest(kernel, s, repeat_reductions=True)
            for s in schedule_variants(kernel, first.schedule)
        ]
        nests.sort(key=lambda nest: nest_cost(nest, machine).us)
        return [nest.schedule for nest in nests]

    def predicted(alone: Partition, region: Region) -> float:
        nest = nest_of(alone, region)
        return math.inf if nest is None else nest_cost(nest, measured_machine(target, config)).us

    key = (repr(target), config.precision, *config.executors)
    return autotune(part, TuningCallbacks(make, schedules, predicted), key, store_of(config))
