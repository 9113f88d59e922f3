"""A program loaded from a file, as a module: check the arguments, run the plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Union

import torch

from tofuse.errors import InputError, ProgramFileError, TofuseError, first_line
from tofuse.gc_pause import pause_gc
from tofuse.runtime.execute import restride
from tofuse.runtime.loaded_program import LoadedProgram, linked_program
from tofuse.runtime.program_file import (
    ConstantInput,
    ProgramFile,
    ResultIndex,
    StateTensor,
    TensorInput,
    read_program,
)
from tofuse.torch_internals.dispatch import DisableAutocast, autocast_on
from tofuse.torch_internals.modules import tensor_tables
from tofuse.torch_internals.transforms import transforms_active
from tofuse.torch_internals.trees import tree_flatten, tree_unflatten

_Slot = tuple[Mapping[str, Union[torch.Tensor, None]], str]  # noqa: UP007  (evaluated at run time)


@pause_gc()
def load(path: str | Path) -> ExportedModule:
    """Return the module in a file of `tofuse.export`; nothing is traced or compiled.

    The file contains machine code: load only files that you trust.

    Raises ProgramFileError if the file is no exported program, is damaged, or has no machine code
    for this processor; OSError if it cannot be read.
    """
    path = Path(path)
    program, tensors = read_program(path)
    try:
        return ExportedModule(linked_program(program, tensors), tensors)
    except ProgramFileError as error:
        raise ProgramFileError(f"{path} {error}") from error
    except Exception as error:  # reading runs nothing of the program
        raise ProgramFileError(f"{path} cannot be loaded: {first_line(error)}") from error


class ExportedModule(torch.nn.Module):
    """An exported program. Its parameters and buffers have the names of the original module.

    A call takes the arguments of the exported call: the same structure, dtypes and constants, and
    sizes inside of the exported limits. It raises InputError for others.
    """

    def __init__(self, loaded: LoadedProgram, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._loaded = loaded
        made: dict[str, torch.Tensor] = {}
        slots: dict[str, _Slot] = {}
        programs = [loaded, *loaded.of_size_one]
        for x in (x for p in programs for x in p.program.state):
            if x.name not in slots:
                slots[x.name] = _add_state(self, x, tensors, made)
        # of each program
        self._slots = [[slots[x.name] for x in p.used] for p in programs]
        self._expected = [
            [(made[x.key].dtype, made[x.key].shape) for x in p.used] for p in programs
        ]

    def forward(self, *args: object, **kwargs: object) -> object:
        """Run the program."""
        if transforms_active():
            raise TofuseError("an exported program cannot run under torch.func's transforms")
        loaded = self._loaded
        program = loaded.program
        if {*kwargs} == {*program.keywords}:  # in any order
            kwargs = {name: kwargs[name] for name in program.keywords}
        leaves, tree = tree_flatten((args, kwargs))
        if tree != loaded.input_tree:
            raise InputError(
                f"the arguments of {program.name} have another structure than when it was "
                f"exported: {tree}, not {loaded.input_tree}"
            )
        number = loaded.for_sizes(leaves) if loaded.ones else 0
        if number:
            loaded = loaded.of_size_one[number - 1]
            program = loaded.program
        run, inputs = loaded.run, _checked_inputs(program, leaves)
        state = self._state(loaded, number)
        if autocast_on():  # the program has its own precision
            with DisableAutocast():
                results = run(*state, *inputs)
        else:
            results = run(*state, *inputs)
        leaves = [results[r.index] if isinstance(r, ResultIndex) else r for r in program.results]
        return tree_unflatten(leaves, loaded.output_tree)

    def extra_repr(self) -> str:
        """Return the inputs, for the module's text."""
        return ", ".join(map(show_input, self._loaded.program.inputs))

    def _state(self, loaded: LoadedProgram, number: int) -> list[torch.Tensor]:
        """Return what a program takes; raise TofuseError if a tensor is no longer as exported."""
        state = [table[name] for table, name in self._slots[number]]
        program = loaded.program.name
        for tensor, expected, x in zip(state, self._expected[number], loaded.used, strict=True):
            if tensor is None or (tensor.dtype, tensor.shape) != expected or not tensor.is_cpu:
                raise TofuseError(
                    f"{x.name} of the exported {program} must stay a tensor of dtype "
                    f"{expected[0]} and shape {list(expected[1])} on the CPU"
                )
            if tensor.requires_grad and not x.requires_grad and torch.is_grad_enabled():
                raise TofuseError(
                    f"{x.name} requires grad, which {program} was not exported for: "
                    "export it with backward=True, or call it under torch.no_grad()"
                )
        return state  # type: ignore[return-value]  # no None


def _checked_inputs(program: ProgramFile, leaves: Sequence[object]) -> list[torch.Tensor]:
    """Return the tensors among the arguments; raise InputError for what does not fit."""
    tensors: list[torch.Tensor] = []
    sizes: dict[str, int] = {}
    for number, (x, leaf) in enumerate(zip(program.inputs, leaves, strict=True)):
        if isinstance(x, ConstantInput):
            if type(leaf) is not type(x.value) or leaf != x.value:
                raise InputError(f"{x.name} must be {x.value!r}, as exported, not {leaf!r}")
            continue
        tensor = _checked_tensor(x, leaf, program)
        tensors.append(tensor)
        for k, (size, expected) in enumerate(zip(tensor.shape, x.shape, strict=True)):
            if isinstance(expected, str) and expected not in sizes:
                least, most = program.sizes[expected]
                if size < least or (most is not None and size > most):
                    raise _wrong_size(program, number, k, size, expected)
                sizes[expected] = size
            elif size != (wanted := sizes[expected] if isinstance(expected, str) else expected):
                raise InputError(f"dimension {k} of {x.name} must be {wanted}, not {size}")
    return tensors


def _wrong_size(program: ProgramFile, number: int, k: int, size: int, symbol: str) -> InputError:
    """Return the error of a size that has no program."""
    least, most = program.sizes[symbol]
    others = (p.inputs[number] for p in program.of_size_one)
    if any(isinstance(x, TensorInput) and x.shape[k] == 1 for x in others):
        least = min(least, 1) if least == 2 else least
    allowed = f"at least {least}" if most is None else f"from {least} to {most}"
    return InputError(
        f"dimension {k} of {program.inputs[number].name} must be {allowed}, not {size}"
    )


def _checked_tensor(x: TensorInput, leaf: object, program: ProgramFile) -> torch.Tensor:
    """Return a tensor argument; raise InputError if its dtype, rank, device or layout differs."""
    rank = len(x.shape)
    if not isinstance(leaf, torch.Tensor):
        raise InputError(f"{x.name} must be a tensor, not {type(leaf).__name__}")
    if f"{leaf.dtype}" != x.dtype or leaf.dim() != rank or not leaf.is_cpu:
        raise InputError(
            f"{x.name} must be a {x.dtype} tensor of {rank} dimensions on the CPU, not a "
            f"{leaf.dtype} tensor of shape {list(leaf.shape)} on {leaf.device}"
        )
    if leaf.layout is not torch.strided or leaf.is_conj() or leaf.is_neg():
        raise InputError(f"{x.name} must be a plain dense tensor")
    if leaf.requires_grad and not x.requires_grad and torch.is_grad_enabled():
        raise InputError(
            f"{x.name} requires grad, which {program.name} was not exported for: export it with "
            "backward=True and an argument that requires grad, or call it under torch.no_grad()"
        )
    return leaf


def _add_state(
    module: torch.nn.Module,
    x: StateTensor,
    tensors: Mapping[str, torch.Tensor],
    made: dict[str, torch.Tensor],
) -> _Slot:
    """Add a parameter or buffer under its name; return its table and its name there."""
    *path, name = x.name.split(".")
    for part in path:
        if part not in dict(module.named_children()):
            module.add_module(part, torch.nn.Module())
        module = module.get_submodule(part)
    if x.key not in made:
        stored = tensors[x.key]
        tensor = stored if stored.stride() == x.strides else restride(stored, x.strides)
        is_parameter = x.is_parameter
        made[x.key] = torch.nn.Parameter(tensor, x.requires_grad) if is_parameter else tensor
    parameters, buffers = tensor_tables(module)
    if x.is_parameter:
        module.register_parameter(name, made[x.key])  # type: ignore[arg-type]  # a parameter
        return parameters, name
    module.register_buffer(name, made[x.key], x.persistent)
    return buffers, name


def show_input(x: TensorInput | ConstantInput) -> str:
    """Return the text of an argument."""
    if isinstance(x, ConstantInput):
        return f"{x.name}={x.value!r}"
    return f"{x.name}: {x.dtype.removeprefix('torch.')}[{', '.join(map(str, x.shape))}]"
