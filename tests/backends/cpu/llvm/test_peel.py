"""Nontemporal stores are aligned to whole vectors, wherever rows begin."""

import pytest
import torch

from tests.support.kernels import kernel, random_buffers, random_tensor, run_interpreter, run_llvm
from tofuse.backends.cpu.llvm.emit import emit
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.ir.schedule import Loop, Schedule, Target

GENERATOR = torch.Generator().manual_seed(12)


def test_nontemporal_stores_are_aligned():
    """An unaligned nontemporal store would trap, as in tiles of odd length."""
    k = kernel(
        """kernel k(x: in f32, y: nontemporal f32) over i0:200 {
          v0 = load x[i0] : f32
          store y[i0] v0 : f32
        }"""
    )
    x = random_tensor(200, torch.float32, GENERATOR)
    for strip in (24, 32, 200):
        nest = build_nest(k, Schedule((Loop("i0", strip), Loop("i0")), 1, 16, 1))
        assert "nontemporal" in emit(nest)
        assert torch.equal(run_llvm(k, nest.schedule, {"x": x, "y": x.clone()}, {}, 2)["y"], x)


def test_interleaved_stores_of_a_peeled_loop_are_aligned():
    """Peeling aligns the stores of `y`; those of `z` then begin inside a vector."""
    k = kernel(
        """kernel k(x: in f32, y: nontemporal f32, z: nontemporal f32) over i:999 {
          v0 = load x[i] : f32
          store y[i + 5] v0 : f32
          store z[(2)*i] v0 : f32
          store z[(2)*i + 1] v0 : f32
        }"""
    )
    schedule = choose_schedule(k, Target(16, 2))
    buffers = random_buffers(k, dict.fromkeys("xyz", 2011), GENERATOR)
    got = run_llvm(k, schedule, buffers, {})
    for name, t in run_interpreter(k, buffers, {}).items():
        assert torch.equal(got[name], t)


ROWS_OF_ANY_LENGTH = """kernel k(x: in {t}, y: nontemporal {t}, z: nontemporal f32,
  u: nontemporal f32) over i0:7 i1:{n} {{
  v0 = load x[({n})*i0 + i1] : f32
  v1 = reduce sum<i1> v0 : f32
  v2 = sub v0 v1 of f32 : f32
  store y[({n})*i0 + i1] v2 : {t}
  store z[({n})*i0 + i1 + 3] v0 : f32
  store u[({m})*i0 + i1 + 16] v0 : f32
}}"""


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("n", [64, 257, 259, 1000, "s0"])
def test_nontemporal_stores_of_unaligned_rows(n, dtype):
    """Each row has nontemporal stores, whatever its length and alignment."""
    length, sizes = (301, {"s0": 301}) if n == "s0" else (n, {})
    text = ROWS_OF_ANY_LENGTH.replace(",\n  u:", ", u:").format(
        t=dtype, n=n, m="s0+16" if sizes else n + 16
    )
    k = kernel(text.replace(" {\n", " sizes s0 {\n", 1) if sizes else text)
    total = 7 * (length + 16) + 16
    buffers = random_buffers(k, dict.fromkeys("xyzu", total), GENERATOR)
    want = run_interpreter(k, buffers, sizes)
    schedule = choose_schedule(k, Target(16, 2))
    assert "nontemporal" in emit(build_nest(k, schedule))
    for threads in (1, 3):
        got = run_llvm(k, schedule, buffers, sizes, threads)
        for name, t in want.items():
            torch.testing.assert_close(got[name], t, rtol=1e-5, atol=1e-4)
