"""Run kernels on flat CPU buffers through Triton's interpreter: TRITON_INTERPRET=1 must be set."""

import random
from collections.abc import Mapping, Sequence
from unittest.mock import patch

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from tests.support.kernels import GUARD, PATTERN, Buffers, fresh_outputs
from tests.support.numbers import TORCH_DTYPES
from tofuse.backends.cuda.triton.emit import emit, emit_group, launch_parameters
from tofuse.backends.cuda.triton.group import group_parameters
from tofuse.backends.cuda.triton.load import JitFunction, jit_functions
from tofuse.ir.dims import evaluate
from tofuse.ir.tile import GpuCall, TileGroup, TileProgram, Workspace, call_name


def run_tiles(
    program: TileProgram,
    buffers: Mapping[str, torch.Tensor],
    sizes: Mapping[str, int],
    exact: bool = True,
    in_place: tuple[str, str] | None = None,
) -> Buffers:
    """Run the launches and return their outputs; raise IndexError if a kernel reports one.

    With `in_place`, the second of two buffers is written into the memory of the first.
    """
    fresh = fresh_outputs(program.kernel, buffers)
    if in_place is not None:
        read, written = in_place
        fresh[written].copy_(buffers[read])
        fresh[read] = fresh[written]
    parameters = [launch_parameters(nest) for nest in program.nests]
    memory = _with_workspaces(fresh, program.workspaces, sizes)
    _launch(emit(program, exact=exact), program.call, parameters, memory, sizes)
    return _checked_outputs(program, fresh)


def run_tile_group(group: TileGroup, buffers: Sequence[Buffers]) -> list[Buffers]:
    """Run the launches of a group for the buffers of its calls; return the outputs of each."""
    program, call = group.program, group.call
    fresh = [fresh_outputs(program.kernel, b) for b in buffers]
    named = {call_name(t, name): x for t, own in enumerate(fresh) for name, x in own.items()}
    parameters = [
        group_parameters(launch_parameters(nest), program.kernel.symbols, len(buffers))
        for nest in program.nests
    ]
    memory = _with_workspaces(named, call.workspaces, {})
    _launch(emit_group(group, exact=True), call, parameters, memory, {})
    return [_checked_outputs(program, own) for own in fresh]


def _with_workspaces(
    buffers: Buffers, workspaces: Sequence[Workspace], sizes: Mapping[str, int]
) -> Buffers:
    memory = dict(buffers)
    for w in workspaces:
        raw = torch.full(
            (evaluate(w.elements, sizes) * w.dtype.itemsize,), PATTERN, dtype=torch.uint8
        )
        memory[w.name] = raw.view(torch.int8 if w.dtype.value == "b1" else TORCH_DTYPES[w.dtype])
    return memory


def _launch(
    text: str,
    call: GpuCall,
    parameters: Sequence[Sequence[tuple[str, str]]],
    memory: Buffers,
    sizes: Mapping[str, int],
) -> None:
    """Run the launches of a text; raise IndexError if one reports an index out of range."""
    kernels = jit_functions(text)
    kernels["libdevice"] = Libdevice()  # type: ignore[assignment]
    flag = torch.zeros(1, dtype=torch.int32)
    for k, instances in enumerate(call.instances):
        words: list[torch.Tensor | int | float] = []
        for name, kind in parameters[k]:
            if name == "flag":
                words.append(flag)
            elif name == "number":
                words.append(k + 1)
            elif kind[0] == "*":
                t = memory[name]
                words.append(t.view(_BYTES.get(t.dtype, t.dtype)))
            elif name in sizes:
                words.append(sizes[name])
            else:
                buffer, _, word = name.rpartition("_")
                is_address = buffer in call.seeds and int(word) == 2
                words.append(0 if is_address else memory[buffer][int(word)].item())
        count = instances if isinstance(instances, int) else instances(sizes)
        if count:
            run_instances(kernels[f"k{k}"], count, words)
    if int(flag):
        raise IndexError("index out of range")


def run_instances(
    function: JitFunction, count: int, words: Sequence[torch.Tensor | int | float]
) -> None:
    """Run the program instances of a launch in a random order, since a GPU may run them in any."""
    order = random.Random(count).sample(range(count), count)
    builder = interpreter.interpreter_builder
    set_index = builder.set_grid_idx
    with patch.object(builder, "set_grid_idx", lambda x, y, z: set_index(order[x], y, z)):
        function[(count,)](*words)  # type: ignore[index]  # Triton's way to launch


def _checked_outputs(program: TileProgram, memory: Buffers) -> Buffers:
    """Return the outputs; fail if a kernel wrote outside of their elements."""
    buffers = program.kernel.buffers
    outputs = {b.name: memory[b.name] for b in buffers if b.role not in ("in", "host")}
    for name, t in outputs.items():
        raw = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())
        guards = torch.cat([raw[:GUARD], raw[-GUARD:]])
        assert bool((guards == PATTERN).all()), f"{name} is written outside its elements"
    return outputs


def _store_with_bool_mask(
    pointers: object, value: object, mask: interpreter.TensorHandle, *policies: object
) -> object:
    """Store as on a GPU: in the interpreter, a comparison of scalars has the type of its operands.

    Since Triton 3.9 the interpreter rejects such a mask.
    """
    bools = interpreter.TensorHandle(mask.data.astype(bool), tl.int1)
    return _masked_store(pointers, value, bools, *policies)


_masked_store = interpreter.interpreter_builder.create_masked_store
interpreter.interpreter_builder.create_masked_store = _store_with_bool_mask


def _fused(
    x: interpreter.TensorHandle, y: interpreter.TensorHandle, z: interpreter.TensorHandle
) -> interpreter.TensorHandle:
    """Multiply and add with one rounding, as on a GPU; the interpreter rounds the product."""
    exact = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data.astype(np.float64)
    return interpreter.TensorHandle(exact.astype(z.data.dtype), z.dtype.scalar)


interpreter.interpreter_builder.create_fma = _fused


def _dot(
    a: interpreter.TensorHandle,
    b: interpreter.TensorHandle,
    total: interpreter.TensorHandle,
    *precision: object,
) -> interpreter.TensorHandle:
    """Multiply matrices; the interpreter multiplies the bits of bfloat16 numbers."""
    widths = (a.dtype.scalar, b.dtype.scalar)
    if tl.bfloat16 not in widths:
        return _matrix_product(a, b, total, *precision)
    wide = [np.left_shift(x.data.astype(np.uint32), 16).view(np.float32) for x in (a, b)]
    return interpreter.TensorHandle(np.matmul(*wide) + total.data, total.dtype.scalar)


_matrix_product = interpreter.interpreter_builder.create_dot
interpreter.interpreter_builder.create_dot = _dot


def _truncate(source: interpreter.TensorHandle, target: tl.dtype) -> interpreter.TensorHandle:
    """Round to bfloat16 as on a GPU; the interpreter cuts the bits off."""
    if target.scalar is not tl.bfloat16 or source.dtype.scalar is not tl.float32:
        return _plain_truncate(source, target)
    rounded = torch.from_numpy(np.array(source.data)).to(torch.bfloat16)
    return interpreter.TensorHandle(rounded.view(torch.uint16).numpy(), tl.bfloat16)


_plain_truncate = interpreter.interpreter_builder.create_fp_trunc
interpreter.interpreter_builder.create_fp_trunc = _truncate

_BYTES = {
    torch.bool: torch.int8,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}


class Libdevice:
    """Libdevice's functions, which Triton's interpreter lacks, implemented with torch."""

    def __getattr__(self, name: str):
        def call(*args):
            core, handle = interpreter.tl.core, interpreter.TensorHandle
            arrays = [torch.from_numpy(np.array(a.handle.data)) for a in args]
            result = getattr(torch, {"rint": "round", "pow": "pow"}.get(name, name))(*arrays)
            return core.tensor(handle(result.numpy(), args[0].dtype), args[0].type)

        return call


def _patch_lang_tensor(tensor, scope) -> None:
    """Let one-element arrays be loop bounds: numpy 2.4 no longer converts them implicitly."""
    _original_patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))


_original_patch = interpreter._patch_lang_tensor
interpreter._patch_lang_tensor = _patch_lang_tensor
