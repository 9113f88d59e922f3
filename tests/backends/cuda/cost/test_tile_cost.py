"""The predicted time of GPU kernels: what binds, and how it depends on sizes and cards."""

import pytest

from tests.support.kernels import kernel
from tofuse.backends.cuda.cost.gpu_machine import DEFAULT_GPU, GPUS, GpuMachine
from tofuse.backends.cuda.cost.tile_cost import TileCost, gpu_cost, tile_costs, tile_program_us
from tofuse.backends.cuda.schedule.build_tiles import build_tiles
from tofuse.ir.tile import GpuTarget, TileProgram


def program(text: str, gpu: GpuMachine = DEFAULT_GPU) -> TileProgram:
    return build_tiles(kernel(text), GpuTarget(gpu.multiprocessors, gpu.capability))


def only_launch(text: str, gpu: GpuMachine = DEFAULT_GPU) -> TileCost:
    (cost,) = tile_costs(program(text, gpu), gpu)
    return cost


def pointwise(elements: int, op: str = "neg", dtype: str = "f32") -> str:
    return f"""kernel k(x: in {dtype}, y: out {dtype}) over i0:{elements} {{
  v0 = load x[i0] : f32
  v1 = {op} v0 of f32 : f32
  store y[i0] v1 : {dtype}
}}"""


def rows(width: int, count: int = 4096) -> str:
    return f"""kernel k(x: in bf16, y: out bf16) over i0:{count} i1:{width} {{
  v0 = load x[({width})*i0 + i1] : f32
  v1 = reduce amax<i1> v0 : f32
  v2 = sub v0 v1 of f32 : f32
  v3 = exp v2 of f32 : f32
  v4 = reduce sum<i1> v3 : f32
  v5 = div v3 v4 of f32 : f32
  store y[({width})*i0 + i1] v5 : bf16
}}"""


def product(rows: int, columns: int, depth: int) -> str:
    axes = f"i0:{rows} i1:{columns} i2:{depth}"
    return f"""kernel k(x: in bf16, w: in bf16, y: out bf16) over {axes} {{
  v0 = load x[({depth})*i0 + i2] : f32
  v1 = round_bf16 v0 of f32 : f32
  v2 = load w[({columns})*i2 + i1] : f32
  v3 = round_bf16 v2 of f32 : f32
  v4 = mul v1 v3 of f32 : f32
  v5 = reduce sum<i2> v4 : f32
  store y[({columns})*i0 + i1] v5 : bf16
}}"""


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_long_copy_takes_the_bandwidth(gpu: GpuMachine):
    cost = only_launch(pointwise(1 << 26), gpu)
    copy_us = (1 << 29) / gpu.memory_rate / 1e3
    assert cost.bound == "memory"
    assert copy_us < cost.us < 1.1 * (copy_us + gpu.launch_us)


def test_a_short_kernel_takes_a_launch():
    cost = only_launch(pointwise(1000))
    assert cost.bound == "latency"
    assert DEFAULT_GPU.launch_us < cost.us < 3 * DEFAULT_GPU.launch_us


def test_instructions_bind_where_functions_are_long():
    assert only_launch(pointwise(1 << 24, "lgamma")).bound == "issue"
    cheap, dear = (only_launch(pointwise(1 << 24, op)).issue_us for op in ("neg", "sin"))
    assert dear > 3 * cheap


def test_unaligned_rows_take_more_instructions():
    aligned, unaligned = (only_launch(rows(width)) for width in (256, 257))
    assert unaligned.issue_us > 1.5 * aligned.issue_us


def test_rows_in_several_passes_are_read_again_from_memory_if_l2_is_small():
    text = rows(1 << 17, 512).replace("sub v0 v1", "sub v1 v0")  # a softmax would take one pass
    small = next(gpu for gpu in GPUS if gpu.name == "A100")
    assert only_launch(text, small).nbytes > only_launch(text, DEFAULT_GPU).nbytes * 0.99
    assert only_launch(text).l2_us * DEFAULT_GPU.l2_rate > 3 * 512 * (1 << 17) * 2 / 1e3


@pytest.mark.parametrize("channels_last", [False, True])
def test_parameters_of_channels_cost_little(channels_last: bool):
    """A thread loads one for its neighbouring elements, or finds it in the L1 cache."""
    steps = "(64)*i1 + i0" if channels_last else "(3136)*i0 + (200704)*i1 + i2"
    axes = "i1:802816 i0:64" if channels_last else "i1:256 i0:64 i2:3136"
    text = f"""kernel k(x: in bf16, m: in f32, w: in f32, y: out bf16) over {axes} {{
  v0 = load x[{steps}] : f32
  v1 = load m[i0] : f32
  v2 = load w[i0] : f32
  v3 = sub v0 v1 of f32 : f32
  v4 = mul v3 v2 of f32 : f32
  store y[{steps}] v4 : bf16
}}"""
    cost = only_launch(text)
    assert cost.bound == "memory"
    assert cost.l2_us < 1.1 * cost.memory_us
    if not channels_last:
        assert cost.registers == 32  # as compiled for 9.0


def test_a_product_is_bound_by_matrix_instructions_or_by_its_weight():
    large, few_rows = only_launch(product(4096, 4096, 4096)), program(product(16, 4096, 4096))
    assert large.bound in ("product", "l2")
    assert large.us > 2 * 4096**3 / DEFAULT_GPU.half_flops / 1e3
    weight_us = 2 * 4096**2 / DEFAULT_GPU.memory_rate / 1e3
    assert weight_us < tile_program_us(few_rows, DEFAULT_GPU) < 5 * weight_us


def test_repeated_rows_cost_more_than_the_least():
    """A sum of each row that every column of the result computes again."""
    text = """kernel k(x: in f32, w: in f32, y: out f32) over i0:2048 i1:2048 i2:2048 {
  v0 = load x[(2048)*i0 + i2] : f32
  v1 = reduce sum<i2> v0 : f32
  v2 = load w[(2048)*i0 + i1] : f32
  v3 = mul v1 v2 of f32 : f32
  store y[(2048)*i0 + i1] v3 : f32
}"""
    cost = gpu_cost(program(text), DEFAULT_GPU)
    assert cost.us > 5 * cost.least_us


def broadcast(rows: int, columns: int) -> str:
    return f"""kernel k(x: in f32, w: in f32, y: out f32) over i0:{rows} i1:{columns} {{
  v0 = load x[({columns})*i0 + i1] : f32
  v1 = load w[i0] : f32
  v2 = mul v0 v1 of f32 : f32
  store y[({columns})*i0 + i1] v2 : f32
}}"""


EMPTY = [
    pointwise(0),
    rows(0),
    rows(8, 0),
    rows(0, 0),
    broadcast(0, 8),
    broadcast(8, 0),
    product(0, 64, 64),
    product(64, 0, 64),
    product(64, 64, 0),
]


@pytest.mark.parametrize("text", EMPTY)
@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_kernels_without_elements_take_their_launches(text: str, gpu: GpuMachine):
    tiles = program(text, gpu)
    assert 0 < gpu_cost(tiles, gpu).us < 5 * len(tiles.nests) * gpu.launch_us
