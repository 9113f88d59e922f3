"""Triton's machine code without a GPU: what compiles, and the width of its memory accesses."""

import importlib.util
import re
from collections.abc import Collection

import pytest

from tests.support.kernels import kernel
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.backends.cuda.triton.emit import emit, emit_group, launch_parameters
from tofuse.backends.cuda.triton.group import group_parameters
from tofuse.backends.cuda.triton.load import LaunchSpec, TritonModule
from tofuse.errors import CompileError
from tofuse.ir.tile import GpuBinary, GpuTarget, TileGroup

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)

POINTWISE = """kernel k(x: in {0}, b: in {0}, y: out {0}) over i0:4096 i1:1024 {{
  v0 = load x[(1024)*i0 + i1] : f32
  v1 = load b[i1] : f32
  v2 = add v0 v1 of f32 : f32
  v3 = tanh v2 of f32 : f32
  store y[(1024)*i0 + i1] v3 : {0}
}}"""
NORM = """kernel k(x: in f32, y: out f32) over i0:8192 i1:1024 {
  v0 = load x[(1024)*i0 + i1] : f32
  v1 = reduce sum<i1> v0 : f32
  v2 = sub v0 v1 of f32 : f32
  store y[(1024)*i0 + i1] v2 : f32
}"""
COLUMNS = """kernel k(x: in f32, g: in f32, y: out f32, z: out f32) over i0:8192 i1:1024 {
  v0 = load x[(1024)*i0 + i1] : f32
  v1 = load g[(1024)*i0 + i1] : f32
  v2 = mul v0 v1 of f32 : f32
  v3 = reduce sum<i1> v2 : f32
  v4 = sub v1 v3 of f32 : f32
  v5 = reduce sum<i0> v2 : f32
  store y[(1024)*i0 + i1] v4 : f32
  store z[i1] v5 : f32
}"""


def compile_binaries(
    text: str, divisible: bool = True, unaligned: Collection[str] = ()
) -> list[GpuBinary]:
    """Return the code of all launches; with `divisible`, all buffers but some are aligned."""
    program = build_tiles(kernel(text), GpuTarget())
    names = [tuple(launch_parameters(nest)) for nest in program.nests]
    launches = [LaunchSpec(names[k], nest.tiling.warps) for k, nest in enumerate(program.nests)]
    loaded = TritonModule(emit(program), launches, 90)
    aligned = [tuple(divisible and b not in unaligned for b, _ in n[:-1]) for n in names]
    return [loaded.binary(k, found) for k, found in enumerate(aligned)]


def global_accesses(binary: GpuBinary) -> list[str]:
    return re.findall(r"(?:ld|st)\.global\.[a-z0-9.:]*", binary.text)


@pytest.mark.parametrize("text", [POINTWISE.format("f32"), POINTWISE.format("bf16"), NORM, COLUMNS])
def test_memory_accesses_are_16_bytes_wide(text: str):
    first = compile_binaries(text)[0]
    assert first.code.startswith(b"\x7fELF")
    accesses = global_accesses(first)
    assert accesses
    assert all("v4.b32" in a for a in accesses), accesses


@pytest.mark.parametrize("dtype", ["f8e4m3", "f8e5m2"])
def test_fp8_is_accessed_as_bytes(dtype: str):
    accesses = global_accesses(compile_binaries(POINTWISE.format(dtype))[0])
    assert accesses and not any("f16" in a for a in accesses)


def test_unaligned_arguments_get_separate_code():
    (binary,) = compile_binaries(POINTWISE.format("f32"), divisible=False)
    assert not any("v4" in a for a in global_accesses(binary))


def test_products_are_not_contracted_to_fma():
    text = POINTWISE.format("f32").replace("add v0 v1", "mul v0 v1")
    (binary,) = compile_binaries(text.replace("tanh v2", "add v2 v1"))
    assert "mul.rn.f32" in binary.text
    assert "fma" not in binary.text


def test_triton_failure_raises_compile_error():
    text = "import triton\n\n@triton.jit\ndef k0(x, flag, number):\n    nonsense(x)\n"
    loaded = TritonModule(
        text, [LaunchSpec((("x", "*fp32"), ("flag", "*i32"), ("number", "i64")), 4)], 90
    )
    with pytest.raises(CompileError, match="Triton"):
        loaded.binary(0, (True, True))


def test_a_group_of_many_calls_keeps_wide_accesses():
    """Conditions choose among parameters that are multiples of 16, so the chosen one is, too."""
    text = "kernel k(x: in bf16, y: out bf16) over i0:n0 sizes n0 {\nv0 = load x[i0] : f32\n"
    program = build_tiles(kernel(f"{text}store y[i0] v0 : bf16\n}}"), GpuTarget())
    sizes = [4096 + 64 * k for k in range(50)]
    for odd, wide in ((0, True), (1, False)):
        group = TileGroup(program, tuple((n + odd,) for n in sizes))
        parameters = group_parameters(launch_parameters(program.nests[0]), ("n0",), len(sizes))
        module = TritonModule(emit_group(group), [LaunchSpec(tuple(parameters), 4)], 90)
        binary = module.binary(0, group.call.aligned([name for name, _ in parameters]))
        assert all(("v4.b32" in a) == wide for a in global_accesses(binary))
