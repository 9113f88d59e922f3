"""Random numbers in machine code: those of Philox's definition, for every schedule."""

import pytest
import torch

from tests.backends.cpu.llvm.test_emit import assert_matches_interpreter, unusual_schedules
from tests.support.kernels import kernel, run_interpreter, run_llvm, schedules
from tests.support.numbers import assert_same_bits
from tofuse.ir.schedule import Loop, Schedule
from tofuse.ops.philox import bernoulli, uniform

UNIFORM = """kernel k(s: in i64, y: out f32) over i0:{rows} i1:{cols} {{
  v0 = uniform s[i0][i1] of {cols} stream {stream} : f32
  store y[({cols})*i0 + i1] v0 : f32
}}"""


@pytest.mark.parametrize("cols", [1, 16, 63, 64, 65, 192, 200])
def test_uniform(cols: int, some):
    """The bits match Philox's definition for every schedule, width and thread count."""
    rows, stream, seed = 5, 7, (-123456789012345, (1 << 33) + 5)
    k = kernel(UNIFORM.format(rows=rows, cols=cols, stream=stream))
    want = torch.from_numpy(uniform(seed, (rows, cols), stream)).flatten()
    buffers = {"s": torch.tensor(seed), "y": torch.empty(rows * cols)}
    assert_same_bits(run_interpreter(k, buffers, {})["y"], want)
    chosen = [*schedules(k, lanes=(1, 4, 8, 16)), *unusual_schedules(k)]
    chosen += [  # one block of counters at a time, but not aligned to it
        Schedule((Loop("i1", strip), Loop("i0"), Loop("i1")), 1, lanes, 64 // lanes)
        for strip in (8, 32, 48)
        for lanes in (8, 16)
    ]
    for schedule in some(chosen, 2):
        for threads in (1, 2, 3):
            assert_same_bits(run_llvm(k, schedule, buffers, {}, threads)["y"], want)


BERNOULLI = """kernel k(s: in i64, y: out b1) over i0:{rows} i1:{cols} {{
  v0 = uniform s[i0][i1] of {cols} stream {stream} below {below} : b1
  store y[({cols})*i0 + i1] v0 : b1
}}"""


@pytest.mark.parametrize("cols", [1, 16, 63, 64, 65, 192, 200])
@pytest.mark.parametrize("below", [1, 1 << 15, 58982])
def test_bernoulli(cols: int, below: int, some):
    rows, stream, seed = 5, 7, (-123456789012345, (1 << 33) + 5)
    k = kernel(BERNOULLI.format(rows=rows, cols=cols, stream=stream, below=below))
    want = torch.from_numpy(bernoulli(seed, (rows, cols), stream, below)).flatten()
    buffers = {"s": torch.tensor(seed), "y": torch.empty(rows * cols, dtype=torch.bool)}
    assert torch.equal(run_interpreter(k, buffers, {})["y"], want)
    chosen = [*schedules(k, lanes=(1, 4, 8, 16)), *unusual_schedules(k)]
    chosen += [Schedule((Loop("i0"), Loop("i1")), 1, lanes, 64 // lanes) for lanes in (4, 8, 16)]
    for schedule in some(chosen, 2):
        for threads in (1, 3):
            assert torch.equal(run_llvm(k, schedule, buffers, {}, threads)["y"], want)


def test_uniform_of_transposed_elements():
    """The numbers depend on the logical position, not on where they are stored or used."""
    k = kernel(
        """kernel k(s: in i64, y: out f32) over i0:6 i1:128 {
          v0 = uniform s[i0][i1] of 128 stream 0 : f32
          v1 = uniform s[i0][(-1)*i1 + 127] of 128 stream 0 : f32
          v2 = uniform s[0][(128)*i0 + i1] of 768 stream 1 : f32
          v3 = mul v1 v2 of f32 : f32
          v4 = sub v0 v3 of f32 : f32
          store y[i0 + (6)*i1] v4 : f32
        }"""
    )
    assert_matches_interpreter(k, {"s": 2, "y": 768}, {}, s=torch.tensor([5, 9]))
