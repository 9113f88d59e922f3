"""Matrix products in kernels compile: the interpreter takes blocks that instructions do not."""

import pytest

from tests.support.interpreted import needs_triton
from tests.support.kernels import kernel
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.backends.cuda.triton.emit import emit, launch_parameters
from tofuse.ir.tile import GpuTarget

pytestmark = needs_triton


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "sizes", [(40, 24, 5), (1000, 9, 16), (3, 70, 700), (17, 1000, 1)], ids=str
)
def test_products_of_few_rows_and_little_depth_compile(sizes: tuple[int, int, int], dtype: str):
    from tofuse.backends.cuda.triton.load import LaunchSpec, TritonModule

    rows, columns, depth = sizes
    rounded = ("v1", "v3") if dtype == "bf16" else ("v0", "v2")
    program = build_tiles(
        kernel(
            f"""kernel k(x: in {dtype}, w: in {dtype}, y: out {dtype})
 over i0:{rows} i1:{columns} i2:{depth} {{
  v0 = load x[({depth})*i0 + i2] : f32
  v1 = round_bf16 v0 of f32 : f32
  v2 = load w[({columns})*i2 + i1] : f32
  v3 = round_bf16 v2 of f32 : f32
  v4 = mul {rounded[0]} {rounded[1]} of f32 : f32
  v5 = reduce sum<i2> v4 : f32
  store y[({columns})*i0 + i1] v5 : {dtype}
}}""".replace("\n over", " over")
        ),
        GpuTarget(),
    )
    specs = [LaunchSpec(tuple(launch_parameters(n)), n.tiling.warps) for n in program.nests]
    module = TritonModule(emit(program), specs, 90)
    for k, spec in enumerate(specs):
        assert module.binary(k, (False,) * len(spec.parameters)).code
