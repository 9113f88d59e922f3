"""An exported program, linked into this process; its pickle is its file's content."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch

from tofuse.backends.cpu.processors import is_arm, running_levels
from tofuse.backends.cpu.runtime.gemm_launch import GemmCode, GemmLauncher
from tofuse.backends.cpu.runtime.group_launch import DRIVER_FUNCTIONS, DriverFunctions
from tofuse.backends.cpu.runtime.launch import KernelCode, Launcher
from tofuse.backends.cpu.runtime.load_image import load_image
from tofuse.errors import ProgramFileError, VerifyError
from tofuse.ir.machine_function import Entry
from tofuse.runtime.autograd_program import make_program
from tofuse.runtime.execute import CompiledPlan, load_plan
from tofuse.runtime.program_file import (
    ExportedCode,
    ExportedGraph,
    ProgramFile,
    code_tensor,
    program_of_text,
    program_text,
)
from tofuse.runtime.verify_program import positions_of_one, verify_program
from tofuse.torch_internals.trees import tree_from_text


class LoadedProgram:
    """A program that can be called with its flat arguments. It does not change: copies share it."""

    def __init__(self, program: ProgramFile, tensors: Mapping[str, torch.Tensor]) -> None:
        """Verify the program; raise an error if a part of it does not fit."""
        processors = host_processors()
        code = next((program.code[p] for p in processors if p in program.code), None)
        if code is None:
            raise ProgramFileError(
                f"has machine code for {', '.join(program.code)}; this processor runs "
                f"{' and '.join(processors) or 'none of these'}; export the program for it"
            )
        verify_program(program, code)
        self.code = code
        self.of_size_one = [LoadedProgram(p, tensors) for p in program.of_size_one]
        self.ones = [positions_of_one(program, p) for p in program.of_size_one]
        self.program, self.used = program, program.used
        keys = (key for c in program.code.values() for g in c.graphs for key in g.constants)
        self.constants = {key: tensors[key] for key in keys}
        self.input_tree = tree_from_text(program.input_tree)
        self.output_tree = tree_from_text(program.output_tree)
        counts = (self.input_tree.num_leaves, self.output_tree.num_leaves)
        if counts != (len(program.inputs), len(program.results)):
            raise VerifyError("the structures of arguments and results have other counts")

    @functools.cached_property
    def run(self) -> Callable[..., torch.Tensor | Sequence[torch.Tensor]]:
        """The linked program; programs of size 1 are linked when first called."""
        return _load_code(self.program, self.code, self.constants)

    def for_sizes(self, arguments: Sequence[object]) -> int:
        """Return 0, or a position from 1 on in `of_size_one`, for the program that takes them."""
        for number, ones in enumerate(self.ones, 1):
            for k, dim in ones:
                shape = x.shape if isinstance(x := arguments[k], torch.Tensor) else ()
                if len(shape) <= dim or shape[dim] != 1:
                    break
            else:
                return number
        return 0

    def __deepcopy__(self, memo: object) -> LoadedProgram:
        """Return the program itself."""
        return self

    def __reduce__(self) -> tuple[Callable[..., LoadedProgram], tuple[object, ...]]:
        constants = dict(self.constants)
        for other in self.of_size_one:
            constants |= other.constants
        text, code = program_text(self.program, constants)
        return _restore, (text, constants, code)


def linked_program(program: ProgramFile, tensors: Mapping[str, torch.Tensor]) -> LoadedProgram:
    """Return a program, ready to run; raise an error if a part of it does not fit."""
    loaded = LoadedProgram(program, tensors)
    _ = loaded.run
    return loaded


def _restore(
    text: str, constants: Mapping[str, torch.Tensor], code: Mapping[str, bytes]
) -> LoadedProgram:
    """Return the program of a pickle; raise ProgramFileError if it does not run here."""
    tensors = {**constants, **{key: code_tensor(content) for key, content in code.items()}}
    try:
        return linked_program(program_of_text(text, tensors), tensors)
    except ProgramFileError as error:
        raise ProgramFileError(f"the pickled program {error}") from error


def host_processors() -> tuple[str, ...]:
    """Return the names of the processors whose machine code runs here, the best first."""
    return running_levels(torch.backends.cpu.get_cpu_capability(), is_arm())


def _load_code(
    program: ProgramFile, code: ExportedCode, tensors: Mapping[str, torch.Tensor]
) -> Callable[..., torch.Tensor | Sequence[torch.Tensor]]:
    functions = load_image(code.image)
    names = DRIVER_FUNCTIONS
    driver = DriverFunctions(*(functions[f"{program.driver}.{name}"] for name in names))
    graphs = [_load_graph(g, functions, driver, tensors) for g in code.graphs]
    return make_program(program.kind, graphs[0], graphs[-1])


def _load_graph(
    graph: ExportedGraph,
    functions: Mapping[str, Entry],
    driver: DriverFunctions,
    tensors: Mapping[str, torch.Tensor],
) -> CompiledPlan:
    """Return a graph as a callable."""
    kernels = [_launcher(k, functions) for k in graph.kernels]
    constants = [tensors[key] for key in graph.constants]
    return load_plan(graph.plan, kernels, driver, constants, {})


def _launcher(
    code: KernelCode | GemmCode, functions: Mapping[str, Entry]
) -> Launcher | GemmLauncher:
    if isinstance(code, GemmCode):
        called = {w: functions[f"{k}.{name}"] for w, (k, name) in code.functions.items()}
        return GemmLauncher(code, functions[f"{code.driver}.kernel"], called)
    names = ["kernel", *(f"kernel.{name}" for name, _ in code.parts)]
    entry, *parts = (functions[f"{code.text_digest}.{name}"] for name in names)
    return Launcher(code, entry, parts)
