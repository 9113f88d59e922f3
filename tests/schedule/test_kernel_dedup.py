"""Kernels that differ in sizes only share code, and compute the same as before."""

import pytest
import torch

from tests.support.kernels import run_interpreter, run_nest
from tofuse.backends.cpu.schedule.build_nest import build_nest
from tofuse.backends.cpu.schedule.choose_schedule import choose_schedule
from tofuse.ir.dims import evaluate, symbol
from tofuse.ir.parse_kernel import parse_kernel
from tofuse.ir.schedule import Target
from tofuse.schedule.kernel_dedup import kernel_dedup, merge_gpu_kernels

ELEMENTWISE = """kernel {name}(x0: in f32, y1: out f32) over i0:{n} {{
  v0 = load x0[i0] : f32
  v1 = mul v0 {factor} of f32 : f32
  store y1[i0] v1 : f32
}}"""
STRIDED = """kernel pairs(x0: in f32, x1: in f32, y2: out f32) over i0:{n} {{
  v0 = load x0[({step})*i0] : f32
  v1 = load x1[(3)*i0 + {n}] : f32
  v2 = add v0 v1 of f32 : f32
  store y2[i0] v2 : f32
}}"""
SUM = """kernel sums(x0: in f32, y1: out f32) over i0:{n} i1:{m} {{
  v0 = load x0[({m})*i0 + i1] : f32
  v1 = reduce sum<i0> v0 : f32
  store y1[i1] v1 : f32
}}"""


SUM_OF_ALL = """kernel sum(x0: in f32, y1: out f32) over i0:{n} {{
  v0 = load x0[i0] : f32
  v1 = reduce sum<i0> v0 : f32
  store y1[0] v1 : f32
}}"""


def deduped(*texts):
    kernels = [parse_kernel(t) for t in texts]
    return kernels, kernel_dedup([(k, choose_schedule(k, Target(16, 2))) for k in kernels])


def test_sizes_become_arguments():
    texts = [ELEMENTWISE.format(name=f"k{n}", n=n, factor=2.0) for n in (5000, 70001, 9999)]
    kernels, found = deduped(*texts)
    assert len({f.kernel for f in found}) == 1
    assert [f.sizes for f in found] == [(5000,), (70001,), (9999,)]
    for kernel, f in zip(kernels, found, strict=True):
        n = evaluate(kernel.axes[0].extent, {})
        buffers = {"x0": torch.randn(n), "y1": torch.empty(n)}
        sizes = dict(zip(f.kernel.symbols, (evaluate(s, {}) for s in f.sizes), strict=True))
        ours = run_nest(build_nest(f.kernel, f.schedule), buffers, sizes, threads=2)
        torch.testing.assert_close(
            ours["y1"], run_interpreter(kernel, buffers, {})["y1"], rtol=0, atol=0
        )


def test_sizes_that_vary_together_share_an_argument():
    texts = [STRIDED.format(n=n, step=step) for n, step in ((4000, 4), (5000, 5))]
    _, found = deduped(*texts)
    assert found[0].kernel is found[1].kernel
    assert [f.sizes for f in found] == [(4000, 4), (5000, 5)]
    assert "(3)*i0" in repr(found[0].kernel)


RANDOM = """kernel k(x0: in i64, y1: out f32) over i0:{n} i1:100 {{
  v0 = uniform x0[i0][i1] of 100 stream {stream} : f32
  store y1[(100)*i0 + i1] v0 : f32
}}"""


def test_streams_become_arguments():
    streams = (0, 1, 7)
    kernels, found = deduped(*[RANDOM.format(n=5, stream=k) for k in streams])
    assert len({f.kernel for f in found}) == 1
    assert [f.sizes for f in found] == [(0,), (1,), (7,)]
    results = []
    for kernel, f, stream in zip(kernels, found, streams, strict=True):
        buffers = {"x0": torch.tensor([3, 4]), "y1": torch.empty(5, 100)}
        ours = run_nest(build_nest(f.kernel, f.schedule), buffers, {"n0": stream}, threads=2)["y1"]
        assert torch.equal(ours, run_interpreter(kernel, buffers, {})["y1"])
        results.append(ours.clone())
    assert not torch.equal(results[0], results[1]) and not torch.equal(results[1], results[2])


def test_stream_arguments_follow_symbolic_sizes():
    texts = [RANDOM.format(n="s0", stream=k) for k in (2, 3)]
    _, found = deduped(*[t.replace("i1:100", "i1:100 sizes s0") for t in texts])
    assert found[0].kernel is found[1].kernel and found[0].kernel.symbols == ("s0", "n0")
    assert [f.sizes for f in found] == [(symbol("s0"), 2), (symbol("s0"), 3)]


def test_random_kernels_of_different_sizes_are_not_merged():
    _, found = deduped(*[RANDOM.format(n=n, stream=2) for n in (5, 6)])
    assert found[0].kernel is not found[1].kernel


def test_for_a_gpu_streams_and_sizes_of_one_axis_become_arguments():
    random = [RANDOM.format(n=5, stream=k) for k in (4, 9)]
    sized = [ELEMENTWISE.format(name="k", n=n, factor=2.0) for n in (5000, 70001)]
    sums = [SUM_OF_ALL.format(n=n) for n in (5000, 70001)]
    found = merge_gpu_kernels([parse_kernel(text) for text in (*random, *sized, *sums)])
    (a, a_sizes), (b, b_sizes), (c, c_sizes), (d, d_sizes), (e, e_sizes), (f, _) = found
    assert a is b and (a_sizes, b_sizes) == ((4,), (9,))
    assert c is d and (c_sizes, d_sizes) == ((5000,), (70001,))
    assert e is not f and e_sizes == ()  # how instances share a sum depends on its size


def test_equal_kernels_need_no_size_arguments():
    _, found = deduped(*[ELEMENTWISE.format(name=f"k{k}", n=5000, factor=2.0) for k in range(2)])
    assert found[0].kernel is found[1].kernel and found[0].sizes == ()


@pytest.mark.parametrize(
    "texts",
    [
        [ELEMENTWISE.format(name="k", n=5000, factor=f) for f in ("2.0", "3.0")],
        [ELEMENTWISE.format(name="k", n=n, factor="2.0") for n in (5000, 1)],
        [ELEMENTWISE.format(name="k", n=n, factor="2.0") for n in (5000, 0)],
        [SUM.format(n=n, m=512) for n in (100, 5000)],  # sums of two loops
    ],
)
def test_different_computations_are_not_merged(texts):
    _, found = deduped(*texts)
    assert found[0].kernel is not found[1].kernel
