"""Load the groups of launches that are one launch of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tofuse.backends.thread_map import thread_map
from tofuse.backends.triton.emit import emit_group, launch_parameters
from tofuse.backends.triton.group import group_parameters
from tofuse.backends.triton.load import LaunchSpec, TritonModule
from tofuse.config import Config
from tofuse.driver.codegen import GeneratedKernel
from tofuse.driver.load_kernels import LoadedKernels, compiling_threads
from tofuse.errors import CompileError
from tofuse.ir.graph import device_of
from tofuse.ir.plan import Plan, launches_by_group
from tofuse.ir.tile import TileGroup, TileProgram
from tofuse.runtime.cuda import CudaLauncher, capability, device_index

LaunchGroup = Callable[..., None]  # takes the words of all launches


def load_groups(
    plan: Plan, generated: Sequence[GeneratedKernel], loaded: LoadedKernels, config: Config
) -> dict[int, LaunchGroup]:
    """Return what launches each group of GPU kernels, by its number.

    A group whose code does not compile makes its launches one after the other.
    """
    kernels = {loaded.bindings[g.region].kernel: g for g in generated}
    groups: dict[int, _Group] = {}
    for number, launches in launches_by_group(plan).items():
        kernel = launches[0].kernel
        program, launcher = kernels[kernel].nest, loaded.launchers[kernel]
        if isinstance(program, TileProgram) and isinstance(launcher, CudaLauncher):
            sizes = (tuple(n for n in x.sizes if isinstance(n, int)) for x in launches)
            device = device_of(kernels[kernel].region.ops)
            tiles = TileGroup(program, tuple(sizes))
            groups[number] = _Group(tiles, launcher, device, config.precision == "eager")
    tasks = [(group, k) for group in groups.values() for k in range(len(group.parameters))]
    thread_map(lambda task: task[0].compile(task[1]), tasks, compiling_threads())
    return {number: group.load() for number, group in groups.items()}


@dataclass(eq=False)
class _Group:
    """A group that is compiled and then loaded; `launcher` launches one of its calls."""

    tiles: TileGroup
    launcher: CudaLauncher
    device: str
    exact: bool
    failed: bool = False

    def __post_init__(self) -> None:
        program, calls = self.tiles.program, len(self.tiles.sizes)
        self.call, symbols = self.tiles.call, program.kernel.symbols
        self.parameters = [
            tuple(group_parameters(launch_parameters(nest), symbols, calls))
            for nest in program.nests
        ]
        pairs = zip(self.parameters, program.nests, strict=True)
        specs = [LaunchSpec(parameters, nest.tiling.warps) for parameters, nest in pairs]
        text = emit_group(self.tiles, exact=self.exact)
        self.module = TritonModule(text, specs, capability(self.device)[0])

    def compile(self, k: int) -> None:
        """Compile launch `k` for aligned tensors."""
        try:
            self.module.binary(k, self.call.aligned([name for name, _ in self.parameters[k]]))
        except CompileError:
            self.failed = True

    def load(self) -> LaunchGroup:
        if self.failed:
            return self.launch_one_by_one
        device = device_index(self.device)
        try:
            return CudaLauncher(self.call, self.parameters, self.module.binary, device)
        except CompileError:  # drivers before CUDA 12.1 take fewer parameters
            return self.launch_one_by_one

    def launch_one_by_one(self, *words: int) -> None:
        count = len(words) // len(self.tiles.sizes)
        for k in range(0, len(words), count):
            self.launcher(*words[k : k + count])
