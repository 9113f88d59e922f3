"""Check dependent sums in one pass: as accurate as in two, for any sizes and values."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.kernels import kernel, run_interpreter
from tests.support.numbers import TORCH_DTYPES
from tofuse.backends.cuda.schedule.split_dependent_sums import split_dependent_sums
from tofuse.ir.dims import evaluate
from tofuse.ir.tile import GpuTarget, Tile, Tiling

VARIANCE = """kernel k(x: in f32, w: out f32, y: out f32) over i0:{rows} i1:{outer} i2:{inner} {{
  v0 = load x[{index}] : f32
  v1 = reduce sum<i1,i2> v0 : f32
  v2 = {mean} : f32
  v3 = sub v0 v2 of f32 : f32
  v4 = mul v3 v3 of f32 : f32
  v5 = reduce sum<i1,i2> v4 : f32
  v6 = mul v3 v5 of f32 : f32
  store w[i0] v5 : f32
  store y[{index}] v6 : f32
}}"""


def run_split(text: str, x: torch.Tensor, rows: int) -> dict[str, torch.Tensor] | None:
    """Run the launches one after the other; None if the kernel is not split."""
    whole = kernel(text)
    split = split_dependent_sums(
        whole, Tiling((Tile(("i1", "i2"), 64, "split"),), 4), GpuTarget(), 0
    )
    if split is None:
        return None
    memory = {"x": x.flatten(), "w": torch.zeros(rows), "y": torch.zeros(x.numel())}
    for w in split.workspaces:
        memory[w.name] = torch.full((evaluate(w.elements, {}),), torch.nan).to(
            TORCH_DTYPES[w.dtype]
        )
    for launch in (split.first, *split.rest):
        used = {b.name: memory[b.name] for b in launch.buffers}
        memory |= run_interpreter(launch, used, {})
    return memory


@settings(deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 60),
    st.integers(1, 600),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 1.0, -1e4]),
    st.integers(0, 1 << 30),
)
def test_variance_of_any_sizes(rows, outer, inner, by_columns, multiplies, offset, seed):
    count = outer * inner
    shape = (outer, inner, rows) if by_columns else (rows, outer, inner)
    order = f"({rows})*i2 + ({rows * inner})*i1 + i0"
    order = order if by_columns else f"({count})*i0 + ({inner})*i1 + i2"
    mean = f"mul v1 {1 / count!r} of f32" if multiplies else f"div v1 {float(count)} of f32"
    text = VARIANCE.format(rows=rows, outer=outer, inner=inner, index=order, mean=mean)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + offset
    found = run_split(text, x, rows)
    if found is None:
        return
    exact = x.double().movedim(-1, 0) if by_columns else x.double()
    exact = exact.reshape(rows, -1)
    deviation = exact - exact.mean(1, keepdim=True)
    want = deviation.square().sum(1)
    # a mean of numbers around 1e4 has an error of up to 0.02, which is squared
    torch.testing.assert_close(found["w"].double(), want, rtol=1e-4, atol=4e-4 * count)


def test_special_values():
    text = VARIANCE.format(
        rows=3, outer=8, inner=256, index="(2048)*i0 + (256)*i1 + i2", mean="div v1 2048.0 of f32"
    )
    x = torch.ones(3, 8, 256)
    x[1, 2, 7], x[2, 0, 0] = torch.inf, torch.nan
    found = run_split(text, x, 3)
    assert found is not None
    assert found["w"][0] == 0
    assert found["w"][1:].isnan().all()


EXPONENTIALS = """kernel k(x: in f32, w: out f32, y: out f32) over {axes} {{
  v0 = load x[{index}] : f32
  v1 = reduce amax<i1,i2> v0 : f32
  v2 = sub v0 v1 of f32 : f32
  v3 = exp v2 of f32 : f32
  v4 = reduce sum<i1,i2> v3 : f32
  v5 = div v3 v4 of f32 : f32
  store w[i0] v4 : f32
  store y[{index}] v5 : f32
}}"""


@settings(deadline=None)
@given(
    st.integers(2, 60), st.integers(64, 600), st.sampled_from([1.0, 60.0]), st.integers(0, 1 << 30)
)
def test_exponentials_of_any_sizes(outer, inner, scale, seed):
    count = outer * inner
    index = f"({count})*i0 + ({inner})*i1 + i2"
    x = scale * torch.randn(2, outer, inner, generator=torch.Generator().manual_seed(seed))
    found = run_split(EXPONENTIALS.format(axes=f"i0:2 i1:{outer} i2:{inner}", index=index), x, 2)
    if found is None:
        return
    exact = x.double().reshape(2, -1)
    want = (exact - exact.amax(1, keepdim=True)).exp().sum(1)
    torch.testing.assert_close(found["w"].double(), want, rtol=1e-5, atol=0)
    torch.testing.assert_close(found["y"].view(2, -1).double(), exact.softmax(1))


def test_chunks_without_finite_numbers():
    text = EXPONENTIALS.format(axes="i0:5 i1:8 i2:1024", index="(8192)*i0 + (1024)*i1 + i2")
    x = torch.randn(5, 8, 1024)
    x[0, :4] = -torch.inf  # a whole chunk, as padding is
    x[1] = -torch.inf
    x[2, 3, 5], x[3, 7, 7] = torch.inf, torch.nan
    x[4, 0, 0] = 1e38
    found = run_split(text, x, 5)
    assert found is not None
    want = x.view(5, -1).double().softmax(1)
    torch.testing.assert_close(found["y"].view(5, -1).double(), want, equal_nan=True)
    assert found["w"][1:4].isnan().all()
    assert found["w"][[0, 4]].isfinite().all()
