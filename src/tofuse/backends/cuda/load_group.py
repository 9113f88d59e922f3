"""Load the groups of launches that are one launch of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tofuse.backends.cuda.load_tiles import tiles_of
from tofuse.backends.cuda.runtime.cuda import CudaLauncher, capability, device_index
from tofuse.backends.cuda.triton.emit import emit_group, launch_parameters
from tofuse.backends.cuda.triton.group import group_parameters
from tofuse.backends.cuda.triton.load import LaunchSpec, TritonModule
from tofuse.backends.launcher import KernelLauncher
from tofuse.backends.target import GroupedCalls, LaunchGroup
from tofuse.backends.thread_map import thread_map
from tofuse.errors import CompileError
from tofuse.ir.tile import TileGroup


def load_groups(
    groups: Mapping[int, GroupedCalls], device: str, exact: bool, threads: int
) -> dict[int, LaunchGroup]:
    """Return what launches each group of GPU kernels.

    A group whose code does not compile makes its launches one after the other.
    """
    made = {number: _group(calls, device, exact) for number, calls in groups.items()}
    tasks = [(group, k) for group in made.values() for k in range(len(group.parameters))]
    thread_map(lambda task: task[0].compile(task[1]), tasks, threads)
    return {number: group.load() for number, group in made.items()}


def _group(calls: GroupedCalls, device: str, exact: bool) -> _Group:
    return _Group(TileGroup(tiles_of(calls.scheduled), calls.sizes), calls.launcher, device, exact)


@dataclass(eq=False)
class _Group:
    """A group that is compiled and then loaded; `launcher` launches one of its calls."""

    tiles: TileGroup
    launcher: KernelLauncher
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
