"""A GPU in CPU memory: launches run in Triton's interpreter; TRITON_INTERPRET=1 must be set."""

import ctypes
import inspect
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.support.capture_only import Recorder
from tests.support.tile_runner import Libdevice, run_instances
from tofuse.backends.cuda.runtime.gpu_driver import replaced_driver
from tofuse.backends.cuda.triton.cubin import RegisterUsage
from tofuse.backends.cuda.triton.load import LaunchSpec, TritonModule
from tofuse.capture.lower.convert import CapturedGraph, convert
from tofuse.driver import compile_program
from tofuse.driver.compiled_graph import CompiledGraph
from tofuse.driver.pipeline import compile_captured
from tofuse.ir.graph import Value, substitute_values
from tofuse.ir.tile import GpuBinary
from tofuse.report.model import GraphReport
from tofuse.torch_internals.dispatch import disable_current_modes

POINTERS = {
    "*fp64": torch.float64,
    "*fp32": torch.float32,
    "*fp16": torch.float16,
    "*bf16": torch.bfloat16,
    "*i64": torch.int64,
    "*i32": torch.int32,
    "*i16": torch.int16,
    "*i8": torch.int8,
    "*u8": torch.uint8,
}


LaunchTime = Callable[[LaunchSpec, str, int], float]  # of its text and number of instances


@dataclass
class FakeGpu:
    """A driver that launches in the interpreter. `launches` has the instances of each launch.

    A clock gives each launch the time `launch_us`, and a call without launches `operators_us`.
    `timed` counts the calls that were timed; they do not run. `usage` are the registers and the
    stack of a launch.
    """

    launch_us: LaunchTime = lambda spec, text, instances: 1.0
    operators_us: float = 1e6
    usage: Callable[[LaunchSpec, str], RegisterUsage] = lambda spec, text: RegisterUsage(32, 0)
    clock: float | None = None
    timed: int = 0

    modules: dict[int, tuple[TritonModule, int, LaunchSpec]] = field(default_factory=dict)
    launches: list[int] = field(default_factory=list)
    recording: list[Callable[[], None]] | None = None
    recorded_memory: list[torch.Tensor] = field(default_factory=list)
    replays: int = 0
    device: int = 0
    flag: ctypes.c_int32 = field(default_factory=ctypes.c_int32)

    def current_device(self) -> int:
        return self.device

    @contextmanager
    def on_device(self, device: int) -> Iterator[None]:
        before, self.device = self.device, device
        yield
        self.device = before

    def stream(self, device: int) -> int:
        return 7 + device

    def empty(self, shape, strides, dtype) -> torch.Tensor:
        with disable_current_modes():
            made = torch.empty_strided(shape, strides, dtype=dtype)
            raw = torch.empty(0, dtype=torch.uint8).set_(made.untyped_storage())
            raw.fill_(0x5B)
        if self.recording is not None:
            self.recorded_memory.append(made)  # as the memory pool of a graph
        return made

    def load(self, binary: GpuBinary, device: int) -> int:
        return int(binary.code)

    def launch(self, function, instances, threads, shared, stream, extra, device) -> str:
        assert stream == 7 + device == 7 + self.device
        size = ctypes.c_size_t.from_address(extra[3]).value
        words = struct.unpack_from(f"<{size // 8}Q", ctypes.string_at(extra[1], size))
        if self.recording is not None:
            self.recording.append(lambda: self._run(function, instances, words))
        else:
            self._run(function, instances, words)
        return ""

    def elapsed_us(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        times = []
        for call in calls:
            self.clock = 0.0
            call()
            times.append(self.clock or self.operators_us)
            self.timed += 1
        self.clock = None
        return times

    def _run(self, function: int, instances: int, words: tuple[int, ...]) -> None:
        module, index, spec = self.modules[function]
        if self.clock is not None:
            self.clock += self.launch_us(spec, launch_text(module, index), instances)
            return
        self.launches.append(instances)
        kernel = module.functions[f"k{index}"]
        kinds = (kind for _, kind in spec.parameters)
        run_instances(kernel, instances, list(map(_argument, words, kinds)))

    def error_flag(self) -> ctypes.c_int32:
        return self.flag

    def synchronize(self) -> None:
        pass

    def is_capturing(self) -> bool:
        return self.recording is not None

    def record(self, function):
        """Record launches and PyTorch's operators; these also run once now."""
        recording: list[Callable[[], None]] = []
        self.recording = recording
        try:
            with _OperatorRecorder(recording):
                result = function()
        finally:
            self.recording = None

        def replay() -> None:
            self.replays += 1
            for step in recording:
                step()

        return result, replay

    def is_on(self, tensor: torch.Tensor, device: int) -> bool:
        return True

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let all programs that are compiled and run inside use this GPU."""

        def compile_launch(module: TritonModule, index: int, divisible: object) -> GpuBinary:
            module.functions["libdevice"] = Libdevice()  # type: ignore[assignment]
            number = len(self.modules) + 1
            spec = module.specs[index]
            self.modules[number] = module, index, spec
            return GpuBinary(str(number).encode(), f"k{index}", 32 * spec.warps, 0, "")

        def register_usage(module: TritonModule, index: int, divisible: object) -> RegisterUsage:
            return self.usage(module.specs[index], launch_text(module, index))

        with (
            replaced_driver(self),
            patch.object(TritonModule, "_compile", compile_launch),
            patch.object(TritonModule, "register_usage", register_usage),
        ):
            yield


def launch_text(module: TritonModule, index: int) -> str:
    """Return the text of a launch."""
    return inspect.getsource(module.functions[f"k{index}"].fn)  # type: ignore[attr-defined]


class _OperatorRecorder(TorchDispatchMode):
    """Records calls of operators, which a replay runs again into the same memory."""

    def __init__(self, recording: list[Callable[[], None]]) -> None:
        super().__init__()
        self.recording = recording

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))

        def run_again() -> None:
            again = func(*args, **(kwargs or {}))
            for old, new in zip(tree_leaves(made), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)

        self.recording.append(run_again)
        return made


def _argument(word: int, kind: str) -> torch.Tensor | int | float:
    """Return an argument of the interpreter: for an address, a tensor of one element there."""
    if kind in POINTERS:
        dtype = POINTERS[kind]
        if word == 0:  # of a tensor without elements
            return torch.zeros(1, dtype=dtype)
        memory = (ctypes.c_char * dtype.itemsize).from_address(word)
        return torch.frombuffer(memory, dtype=dtype)
    raw = word.to_bytes(8, "little")
    value: int | float = struct.unpack("<d" if kind == "fp64" else "<q", raw)[0]
    return value


def on_gpu(captured: CapturedGraph) -> CapturedGraph:
    """Return a captured program with all its tensors on a GPU."""
    moved = {v: replace(v, type=replace(v.type, device="cuda:0")) for v in captured.graph.values()}

    def new(v):
        return moved[v] if isinstance(v, Value) else v

    return replace(
        captured,
        graph=substitute_values(captured.graph, moved),
        arguments=tuple(map(new, captured.arguments)),
        results=tuple(map(new, captured.results)),
        constants=tuple((new(v), t) for v, t in captured.constants),
        writes=tuple((new(a), new(b)) for a, b in captured.writes),
    )


class GpuRecorder(Recorder):
    """A `torch.compile` backend that compiles programs for a fake GPU; `reports` describe them.

    Under `tune="measure"`, whole programs do not compete with eager: the interpreter always loses.
    """

    def __init__(self, gpu: FakeGpu, tune: str = "off", **options):
        super().__init__(**options)
        self.tune = tune
        self.gpu = gpu
        self.reports: list[GraphReport] = []

    def compile_graph(self, graph, context, fuel, notes=(), args=()):
        captured = on_gpu(convert(graph.gm, graph.phase, memory=graph.memory))
        self.captured.append(captured)
        self.phases.append(graph.phase)
        with self.gpu.in_place():
            config = replace(self.context.config, tune=self.tune)
            tuned = replace(self.context, config=config)
            compiled = compile_captured(captured, graph.phase, tuned)
        self.reports += compiled.findings.reports

        def call(args):
            with self.gpu.in_place():  # it may compile for unaligned tensors
                return compiled.run(args)

        return CompiledGraph(call)


@pytest.fixture
def compile_for(monkeypatch: pytest.MonkeyPatch):
    """Return a function that compiles a program for a fake GPU, and returns it with its reports."""

    def compile_program_for(
        gpu: FakeGpu, program: Callable[..., object], dynamic: bool = False, **options
    ):
        torch._dynamo.reset()
        recorder = GpuRecorder(gpu, **options)
        # a backward is compiled at its first call
        monkeypatch.setattr(compile_program, "compile_graph", recorder.compile_graph)
        return torch.compile(program, backend=recorder.backend, dynamic=dynamic), recorder.reports

    return compile_program_for
