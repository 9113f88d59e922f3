"""Partition -> machine code and a plan: what each region becomes, and who runs it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tofuse.backends.aten.run_ops import executor_runner, region_runner
from tofuse.backends.llvm.emit import part_names
from tofuse.backends.llvm.load import load, load_text
from tofuse.backends.llvm.parallel_driver import DRIVER
from tofuse.backends.triton.emit import parameters
from tofuse.backends.triton.load import Launch as TritonLaunch
from tofuse.backends.triton.load import load as load_triton
from tofuse.cache.artifact import (
    Recorded,
    load_kernel,
    load_product,
    prepare,
)
from tofuse.config import Config
from tofuse.cost.machine import Machine, machine_on
from tofuse.cost.machine_source import assumed_machine, measured_machine, store_of
from tofuse.cost.nest import nest_cost, tiles_us, traffic_us
from tofuse.driver.autotune import ATEN, Choice
from tofuse.driver.codegen import (
    Built,
    Unfit,
    build_region,
    build_regions,
)
from tofuse.driver.gemm import build_products
from tofuse.errors import CompileError
from tofuse.executors import executors_of
from tofuse.fusion.assign_executors import (
    NO_KERNELS,
    Assignment,
    assign_call,
    assign_fallback,
    assign_kernel,
)
from tofuse.fusion.nontemporal import streamed
from tofuse.ir.dims import hint, symbol
from tofuse.ir.executor import Executors
from tofuse.ir.graph import Value, device_of
from tofuse.ir.nest import Nest
from tofuse.ir.plan import Call, Plan
from tofuse.ir.region import Partition, Region
from tofuse.ir.schedule import Schedule, Target
from tofuse.ir.tile import TileProgram
from tofuse.plan.build import Signature, build_plan, from_tensors
from tofuse.plan.donation import KernelCall
from tofuse.report.model import region_bytes
from tofuse.report.repro import region_graph, repro_folder, write_mismatch, write_repro
from tofuse.runtime.clock import Clock
from tofuse.runtime.cuda import CudaLauncher, capability, device_index
from tofuse.runtime.execute import CompiledPlan, Tensor, load_plan
from tofuse.runtime.gemm_launch import ProductLauncher
from tofuse.runtime.launch import Launcher, kernel_code
from tofuse.runtime.out_variants import out_variant
from tofuse.runtime.verify_kernels import Checked, Inputs, save_inputs
from tofuse.schedule.alias_legality import overwrites

Launch = Launcher | CudaLauncher | ProductLauncher
LARGE_WORKSPACE = 1 << 16  # bytes a thread: a kernel with more is launched by itself


@dataclass(frozen=True, eq=False)
class Assembled:
    """A program that runs: its kernels, who runs each region, its plan, and what went wrong."""

    load: Callable[[Clock | None], CompiledPlan]  # with a clock, its steps are timed
    built: Sequence[Built]
    assigned: Mapping[Region, Assignment]
    plan: Plan
    notes: Sequence[str]
    recorded: Recorded | None  # where all of it is data


def assemble(
    part: Partition,
    signature: Signature,
    constants: Sequence[Tensor],
    choices: Mapping[Region, Choice],
    target: Target,
    config: Config,
    done: Callable[[str], None] = lambda stage: None,
) -> Assembled:
    """Machine code and a plan for a partition; `done` is told of each stage."""
    measured = measured_machine(target, config)
    streams = streamed(part, assumed_machine(target, config).l3_bytes)
    executors = executors_of(config)
    assigned = {
        r: assign_call(r, executors, measured, out_variant) for r in part.regions if r.library
    }
    wanted, unfit = _wanted(part, choices, executors)
    made = build_regions(wanted, part, streams, target, config)
    built = [b for b in made if isinstance(b, Built)]
    unfit |= {u.region: u.reason for u in made if isinstance(u, Unfit)}
    done("lower and emit")
    launchers, calls, notes = _load(built, part, config)
    products = build_products(part, assigned, target, config, measured, launchers)
    calls |= {r: call for r, (call, _) in products.items()}
    launchers += [load_product(code, store_of(config)) for _, code in products.values()]
    done("machine code")
    notes += [f"{r.name} runs through PyTorch: {why}" for r, why in unfit.items()]
    users = {r: a for r, a in assigned.items() if a.executor is not None}
    labels = {r: f"{a.label(r.ops[0])}_{k}" for k, (r, a) in enumerate(users.items())}
    checked = _checked(calls, config)
    notes += _unsupported(part, config)
    launched = {r: c for r, c in calls.items() if r not in checked}
    plan = build_plan(part, signature, launched, labels, out_variant)
    check = _checker(part, streams, target, config)
    whole = {r: from_tensors(r, part) for r in part.regions if not r.library}
    functions: dict[str, Callable[..., object]] = {
        f"region{k}": check(whole[r], calls[r], launchers)
        if r in checked
        else region_runner(whole[r])
        for k, r in enumerate(part.regions)
        if not r.library
    }
    for r, a in users.items():
        assert a.executor is not None
        functions[labels[r]] = executor_runner(a.name, r.ops[0], a.executor.run)
    done("plan")
    running = [b for b in built if b.region in calls]
    assigned |= _assign_ours(running, part, choices, measured)
    for r in (r for r in part.regions if r not in assigned):
        why = unfit.get(r, "its kernel does not compile")
        assigned[r] = assign_fallback(r, why, measured)

    (driver,) = load(DRIVER, ["kernel"], store_of(config))

    def run(clock: Clock | None) -> CompiledPlan:
        return load_plan(plan, launchers, driver, constants, functions, clock)

    called = any(isinstance(s, Call) and s.target in functions for s in plan.steps)
    recorded = None if called else _recorded(plan, launchers, constants)
    return Assembled(run, running, assigned, plan, notes, recorded)


def _recorded(
    plan: Plan, launchers: Sequence[Launch], constants: Sequence[Tensor]
) -> Recorded | None:
    """A program of kernels and PyTorch's operators as data; none where a kernel is a GPU's."""
    codes = [x.code for x in launchers if isinstance(x, (Launcher, ProductLauncher))]
    if len(codes) < len(launchers):
        return None
    return Recorded(plan, tuple(codes), tuple(constants))


def _wanted(
    part: Partition, choices: Mapping[Region, Choice], executors: Executors
) -> tuple[dict[Region, Schedule | None], dict[Region, str]]:
    """The schedules of regions that shall be kernels, None for the usual; why others shall not."""
    wanted: dict[Region, Schedule | None] = {}
    unfit: dict[Region, str] = {}
    for r in (r for r in part.regions if not r.library):
        choice = choices.get(r, Choice())
        if choice.kind == ATEN or not executors.kernels:
            unfit[r] = choice.why if choice.kind == ATEN else NO_KERNELS
        else:
            wanted[r] = choice.schedule
    return wanted, unfit


def _assign_ours(
    running: Sequence[Built],
    part: Partition,
    choices: Mapping[Region, Choice],
    machine: Machine,
) -> dict[Region, Assignment]:
    """Our kernels by region, with what each is predicted to take."""
    found = {}
    for b in running:
        why = choices[b.region].why if b.region in choices else "generated code"
        us, device = _predicted(b, part, machine), device_of(b.region.ops)
        found[b.region] = assign_kernel(us, why, device)
    return found


def _predicted(b: Built, part: Partition, machine: Machine) -> float:
    """Microseconds of a kernel; by its bytes alone where it is made for sizes of any region."""
    if isinstance(b.nest, TileProgram):
        return tiles_us(b.nest, machine_on(device_of(b.region.ops), machine))
    if b.sizes == tuple(symbol(s) for s in b.nest.kernel.symbols):
        return nest_cost(b.nest, machine).us
    return traffic_us(machine, region_bytes(b.region, part.storage)) + machine.launch_us


def _launcher(b: Built, text: str, config: Config) -> Launch:
    """Machine code for a region; raises CompileError."""
    if b.broken is not None:
        raise CompileError(b.broken)
    if isinstance(b.nest, Nest):
        names, kept = part_names(b.nest), store_of(config)
        key = load_text(text, ["kernel", *(f"kernel.{n}" for n, _ in names)], kept)
        return load_kernel(kernel_code(b.nest.kernel, key, names, b.nest.block_bytes), kept)
    given = [tuple(parameters(nest)) for nest in b.nest.nests]
    launches = [
        TritonLaunch(f"k{k}", given[k], nest.tiling.warps) for k, nest in enumerate(b.nest.nests)
    ]
    device = device_of(b.region.ops)
    made = load_triton(text, launches, capability(device)[0])
    return CudaLauncher(b.nest, given, made.binary, device_index(device))


def _kernel_call(b: Built, number: int) -> KernelCall:
    """A GPU's kernel is launched by itself, and writes over nothing that it reads."""
    if isinstance(b.nest, TileProgram):
        return KernelCall(number, b.arguments, b.sizes, None)
    alone = hint(b.nest.block_bytes) > LARGE_WORKSPACE
    written = None if alone else tuple(x.role != "in" for x in b.nest.kernel.buffers)
    return KernelCall(number, b.arguments, b.sizes, written, overwrites(b.nest))


def _load(
    built: Sequence[Built], part: Partition, config: Config
) -> tuple[list[Launch], dict[Region, KernelCall], list[str]]:
    """Machine code for every distinct kernel; regions that do not compile are left out."""
    prepare(config)
    launchers: list[Launch] = []
    calls: dict[Region, KernelCall] = {}
    numbers: dict[str, int] = {}
    broken: list[str] = []
    for b in built:
        name = b.nest.kernel.name
        text = b.source.replace(f"@{name}", "@kernel")
        key = f"{device_of(b.region.ops)} {text}"
        if key not in numbers:
            try:
                made = _launcher(b, text, config)
            except CompileError as e:
                broken.append(_report_broken(b, part, config, e))
                continue
            numbers[key] = len(launchers)
            launchers.append(made)
        calls[b.region] = _kernel_call(b, numbers[key])
    return launchers, calls, broken


def _checked(calls: Mapping[Region, KernelCall], config: Config) -> frozenset[Region]:
    """The regions whose kernels are held against the reference."""
    if not config.verify:
        return frozenset()
    return frozenset(r for r in calls if device_of(r.ops) == "cpu")


def _unsupported(part: Partition, config: Config) -> list[str]:
    """What is asked for and done for kernels on the CPU alone."""
    if all(r.library or device_of(r.ops) == "cpu" for r in part.regions):
        return []
    notes = ["verify=True does not check kernels on a GPU"] if config.verify else []
    if config.tune == "measure":
        notes.append("tune='measure' has no candidates for kernels on a GPU: they stay as they are")
    return notes


def _checker(
    part: Partition, streams: frozenset[Value], target: Target, config: Config
) -> Callable[[Region, KernelCall, Sequence[Launch]], Checked]:
    """How to run a region's kernel under `verify`."""

    def alone(region: Region) -> Checked | None:
        made = build_region(region, part, streams, target, config)
        if isinstance(made, Unfit) or made.broken is not None:
            return None
        launchers, calls, _ = _load([made], part, config)
        return check(region, calls[region], launchers) if region in calls else None

    def check(region: Region, call: KernelCall, launchers: Sequence[Launch]) -> Checked:
        def write(inputs: Inputs, sizes: Mapping[str, int], error: str) -> Path | None:
            text = save_inputs(inputs, repro_folder(config.dump), region.name)
            graph = region_graph(region, part.storage)
            return write_mismatch(graph, text, sizes, error, config.dump)

        launcher = launchers[call.kernel]
        assert isinstance(launcher, Launcher)  # on the CPU, as all that is checked
        return Checked(region, part.storage, launcher, call, alone, write)

    return check


def _report_broken(b: Built, part: Partition, config: Config, error: CompileError) -> str:
    """Warn, or raise under `strict`, with a file that shows the failure again."""
    name = b.nest.kernel.name
    path = write_repro(b.region, part.storage, str(error), config.dump)
    at = "" if path is None else f"; {path} shows it again"
    lines = dict.fromkeys(repr(op.loc) for op in b.region.ops if op.loc is not None)
    where = f" (from {', '.join(lines)})" if lines else ""
    if config.strict:
        raise CompileError(f"{name}{where} does not compile: {error}{at}") from error
    message = f"tofuse runs {name}{where} through PyTorch: {error}{at}"
    warnings.warn(message, stacklevel=2)
    return f"{name}: {error}"
