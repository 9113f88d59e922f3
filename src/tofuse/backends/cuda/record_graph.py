"""Decide whether a program is recorded as a CUDA graph, and load it so."""

from __future__ import annotations

from tofuse.backends.cuda.runtime.cuda import device_index
from tofuse.backends.cuda.runtime.graph_replay import GraphReplay, GraphSeeds
from tofuse.backends.launcher import Program
from tofuse.backends.target import LoadProgram
from tofuse.cost.thresholds import MIN_RECORDED_LAUNCHES
from tofuse.ir.graph import Graph
from tofuse.ir.plan import Call, Launch, Plan
from tofuse.ops.reference import resolve_operator
from tofuse.ops.table import OPS, Pattern
from tofuse.torch_internals.storage_owners import COUNTS_SHOW_OWNERS

SEED = "tofuse.seed.default"
SEED_FUNCTION = "tofuse_seed_default"  # as the text of a plan calls it
UNSAFE_TAGS = ("cudagraph_unsafe", "data_dependent_output", "dynamic_output_shape")


def recordable_device(graph: Graph, plan: Plan) -> str | None:
    """Return the GPU of a program that can be recorded; None if it cannot.

    All values but seeds must be on one GPU, and sizes must be constant. PyTorch's own operators may
    be called, if they do not read results on the CPU. Torch's counts must show who holds a result.
    """
    if not COUNTS_SHOW_OWNERS:
        return None
    seeds = {op.inputs[0] for op in graph.ops if OPS[op.kind].pattern is Pattern.RANDOM}
    seeds |= {r for op in graph.ops if _is_seed(op.attrs) for r in op.results}
    devices = {v.type.device for v in graph.values() if v not in seeds}
    calls = {step.target for step in plan.steps if isinstance(step, Call)} - {SEED}
    launches = {
        k if step.group is None else f"group {step.group}"
        for k, step in enumerate(plan.steps)
        if isinstance(step, Launch)
    }
    steps = len(launches) + sum(isinstance(step, Call) for step in plan.steps)
    if plan.symbols or steps < MIN_RECORDED_LAUNCHES or not all(map(_is_capturable, calls)):
        return None
    return devices.pop() if len(devices) == 1 and "cpu" not in devices else None


def _is_seed(attrs: object) -> bool:
    return isinstance(attrs, tuple) and ("target", SEED) in attrs


def _is_capturable(target: str) -> bool:
    """Whether PyTorch's operator can run while a graph is captured."""
    if not target.startswith("aten."):
        return False  # a function in Python, a collective, an operator that we know nothing of
    tags = getattr(resolve_operator(target), "tags", ())
    return not any(tag.name in UNSAFE_TAGS for tag in tags)


def graph_replay(load: LoadProgram, plan: Plan, constants: int, *, device: str) -> Program:
    """Return a program that replays graphs on a device; `load` loads it with functions.

    The last parameters of the plan are `constants`, which a call does not pass.
    """
    seeds = GraphSeeds()
    run = load({SEED: seeds.draw, SEED_FUNCTION: seeds.draw})
    parameters = list(enumerate(plan.parameters))[: len(plan.parameters) - constants]
    tensors = [k for k, p in parameters if p.strides is not None]
    mutated = frozenset(k for k, p in parameters if p.mutated)
    return GraphReplay(run, plan.name, tensors, mutated, device_index(device), seeds)
