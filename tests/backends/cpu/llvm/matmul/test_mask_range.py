"""Blocks of rows compute what masks leave to them, and no more."""

import math
import re

import pytest
import torch

import tofuse
from tests.backends.cpu.llvm.matmul.test_blocked_kernel import TARGET, backend
from tests.backends.cpu.llvm.matmul.test_chain_kernel import chain
from tests.support.kernels import kernel, run_interpreter, run_text
from tofuse.backends.cpu.llvm.emit import EmitOptions
from tofuse.backends.cpu.llvm.matmul.chain_kernel import emit_chain

pytestmark = pytest.mark.skipif(TARGET.lanes == 1, reason="the microkernel needs vectors")

# scores of i and j, with a mask, then their softmax times v; `lines` end in the scores v8
ATTENTION = """
kernel k(q: in f32, k: in f32, v: in f32, n: in i64, o: in i32, m: in b1, y: out f32)
 over h:{h} i:{i} c:20 d:16 j:{j} {{
  v0 = load q[({id})*h + (16)*i + d] : f32
  v1 = load k[({jd})*h + (16)*j + d] : f32
  v2 = mul v0 v1 of f32 : f32
  v3 = reduce sum<d> v2 : f32
  v4 = iota [i] : i64
  v5 = iota [j] : i64
  {lines}
  v9 = reduce amax<j> v8 : f32
  v10 = sub v8 v9 of f32 : f32
  v11 = exp v10 of f32 : f32
  v12 = reduce sum<j> v11 : f32
  v13 = div v11 v12 of f32 : f32
  v14 = load v[({jc})*h + (20)*j + c] : f32
  v15 = mul v13 v14 of f32 : f32
  v16 = reduce sum<j> v15 : f32
  store y[({ic})*h + (20)*i + c] v16 : f32
}}
"""
MASKS = {
    "causal": ["v6 = lt v4 v5 of i64 : b1", "v8 = where v6 {fill} v3 of f32 : f32"],
    "window": [
        "v6 = sub v4 v5 of i64 : i64",
        "v61 = abs v6 of i64 : i64",
        "v62 = lt v61 21 of i64 : b1",
        "v8 = where v62 v3 {fill} of f32 : f32",
    ],
    "lengths": [
        "v6 = load n[h] : i64",
        "v61 = ge v5 v6 of i64 : b1",
        "v8 = where v61 {fill} v3 of f32 : f32",
    ],
    "documents": [
        "v6 = load o[i] : i32",
        "v61 = load o[j] : i32",
        "v62 = eq v6 v61 of i32 : b1",
        "v8 = where v62 v3 {fill} of f32 : f32",
    ],
    "keys": ["v6 = load m[({j})*h + j] : b1", "v8 = where v6 v3 {fill} of f32 : f32"],
    "two masks": [
        "v6 = lt v4 v5 of i64 : b1",
        "v61 = where v6 {fill} v3 of f32 : f32",
        "v62 = load n[h] : i64",
        "v63 = ge v5 v62 of i64 : b1",
        "v8 = where v63 {fill} v61 of f32 : f32",
    ],
    "nothing left": [
        "v6 = lt v5 v4 of i64 : b1",
        "v61 = lt v4 v5 of i64 : b1",
        "v62 = logical_or v6 v61 of b1 : b1",
        "v63 = ge v4 30 of i64 : b1",
        "v64 = logical_or v62 v63 of b1 : b1",
        "v8 = where v64 {fill} v3 of f32 : f32",
    ],
}


def text_of(name, heads, rows, keys, fill="-inf"):
    lines = "\n  ".join(MASKS[name]).format(fill=fill, j=keys)
    sizes = {"id": rows * 16, "jd": keys * 16, "jc": keys * 20, "ic": rows * 20}
    text = ATTENTION.format(**sizes, h=heads, i=rows, j=keys, lines=lines)
    return text.replace("f32)\n over", "f32) over")


def buffers_of(heads, rows, keys):
    lengths = torch.tensor([keys, keys // 2 + 1, 1])[torch.arange(heads) % 3]
    return {
        "q": torch.randn(heads * rows * 16),
        "k": torch.randn(heads * keys * 16),
        "v": torch.randn(heads * keys * 20),
        "n": lengths,
        "o": (torch.arange(max(rows, keys)) // 37).int(),
        "m": (torch.arange(keys) < lengths[:, None]).flatten(),
        "y": torch.empty(heads * rows * 20),
    }


@pytest.mark.broad(2)
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("rows", "keys"), [(1, 40), (100, 100), (64, 200), (200, 65)])
@pytest.mark.parametrize("fill", ["-inf", "-1000000000.0", "-1000.0"])
def test_values(name, rows, keys, fill):
    text, buffers = text_of(name, 3, rows, keys, fill), buffers_of(3, rows, keys)
    built = chain(text)
    assert len(built.masks) == (2 if name == "two masks" else 1)
    code = emit_chain(built, EmitOptions(contract=True, avx512=TARGET.avx512))
    found = run_text(code, built.kernel, built.block_bytes, buffers, {}, 2)["y"]
    expected = run_interpreter(kernel(text), buffers, {}, precise=True)["y"]
    # with -inf, rows that are masked as a whole are NaN
    torch.testing.assert_close(found, expected.float(), equal_nan=True, rtol=1e-5, atol=1e-5)


def test_share_of_a_causal_mask_is_half():
    built = chain(text_of("causal", 1, 1024, 1024))
    assert 0.5 < built.computed < 0.6
    built = chain(text_of("window", 1, 1024, 1024))
    assert built.computed < 0.15


def test_a_condition_on_other_columns_is_no_mask():
    """It would mask a result, not a row's keys."""
    lines = ["v6 = iota [c] : i64", "v61 = lt v6 v5 of i64 : b1", "v8 = add v3 1.0 of f32 : f32"]
    text = text_of("causal", 1, 64, 64)
    text = text.replace("\n  ".join(MASKS["causal"]).format(fill="-inf"), "\n  ".join(lines))
    text = text.replace(
        "v15 = mul v13 v14", "v71 = where v61 0.0 v14 of f32 : f32\n  v15 = mul v13 v71"
    )
    found = backend().chain(kernel(text))
    assert found is None or not found.masks


def causal(q, k, v):
    i = torch.arange(q.shape[-2])
    s = q @ k.transpose(-1, -2)
    return torch.softmax(s.masked_fill(i[:, None] < i, -math.inf), -1) @ v


@pytest.mark.usefixtures("fresh_dynamo")
def test_the_report_says_how_many_blocks_are_computed():
    q, k, v = (torch.randn(1, 2, 512, 32) for _ in range(3))
    (note,) = tofuse.explain(causal)(q, k, v).graphs[0].notes
    assert re.search(r"computes only the blocks that masks leave \(5\d% of all\)$", note)


@pytest.mark.usefixtures("fresh_dynamo")
def test_masked_blocks_are_not_read():
    q, k, v = (torch.randn(1, 2, 256, 32) for _ in range(3))
    expected = causal(q, k, v)
    k[..., 224:, :], v[..., 224:, :] = math.nan, math.nan
    ours = tofuse.compile(causal, dynamic=False, hand_back=False)(q, k, v)
    first = slice(0, 150)
    torch.testing.assert_close(ours[..., first, :], expected[..., first, :])
