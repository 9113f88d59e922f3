"""Weights of GGUF files stay in their codes, and decode to what gguf decodes them to."""

import io

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

import tofuse
from suites.language_models.gguf_llama import write_llama
from tofuse.integrations.gguf import load
from tofuse.integrations.gguf_formats import FORMATS
from tofuse.integrations.gguf_weight import GgufWeight

CONFIG = LlamaConfig(
    vocab_size=96,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    rms_norm_eps=1e-6,
)


def random_weight(kind, *rows, columns=512, dtype=torch.float32):
    """Return a weight of random codes, and its numbers by the package gguf."""
    random, form = np.random.default_rng(0), FORMATS[kind]
    blocks = columns // form.elements
    data = random.integers(0, 256, (*rows, blocks, form.nbytes), dtype=np.uint8)
    weight = GgufWeight.from_bytes(torch.from_numpy(data).flatten(-2), kind, dtype)
    finite = {n: torch.rand(p.shape).half() * 0.01 for n, p in weight.parts.items() if n in "dm"}
    return GgufWeight(weight.parts | finite, kind, dtype)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_decodes_as_in_gguf(kind):
    random = np.random.default_rng(0)
    data = random.integers(0, 256, (7, 3 * FORMATS[kind].nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        numbers = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
    weight = GgufWeight.from_bytes(torch.from_numpy(data), kind, torch.float32)
    assert weight.shape == numbers.shape
    expected = torch.from_numpy(numbers)
    torch.testing.assert_close(weight.dequantize(), expected, equal_nan=True, rtol=1e-6, atol=0.0)
    assert weight.stored_bytes <= 1.04 * data.nbytes


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear_decodes_in_its_kernel(kind, rows, dtype):
    weight = random_weight(kind, 384, columns=1024, dtype=dtype)
    x, bias = torch.randn(rows, 1024).to(dtype), torch.randn(384).to(dtype)
    expected = F.linear(x.double(), weight.decode().double(), bias.double())

    def error(result):
        return ((result - expected).norm() / expected.norm()).item()

    with torch.no_grad():
        compiled = tofuse.compile(F.linear, hand_back=False)(x, weight, bias)
        eager = F.linear(x, weight, bias)
        report = tofuse.explain(F.linear)(x, weight, bias)
    bound = 1e-5 if dtype is torch.float32 else 0.01
    assert error(compiled) < bound and error(eager) < bound
    if rows == 1 or dtype is torch.bfloat16:
        assert report.peak_bytes < weight.numel(), report


@pytest.mark.parametrize("kind", ["Q4_0", "Q6_K", "Q8_0"])
def test_rows_and_experts_are_decoded_alone(kind):
    table, experts = random_weight(kind, 50), random_weight(kind, 6, 32)
    indices = torch.tensor([[3, 0], [49, 3]])

    def use(table, experts, x):
        chosen = experts[torch.tensor([4, 1])]
        return F.embedding(indices, table), F.linear(x, experts[2]), x @ chosen.transpose(1, 2)

    x = torch.randn(3, 512)
    plain = table.dequantize(), experts.dequantize()
    expected = use(*plain, x)
    with torch.no_grad():
        for run in (use, tofuse.compile(use, hand_back=False)):
            torch.testing.assert_close(run(table, experts, x), expected, rtol=1e-4, atol=1e-3)
    assert isinstance(experts[2], GgufWeight)


def test_a_weight_is_copied_saved_and_cast():
    weight = random_weight("Q4_K", 8)
    file = io.BytesIO()
    torch.save(weight, file)
    file.seek(0)
    for copy in (weight.clone(), weight.detach(), torch.load(file)):
        assert isinstance(copy, GgufWeight)
        assert torch.equal(copy.dequantize(), weight.dequantize())
    half = weight.to(torch.float16)
    assert isinstance(half, GgufWeight) and half.dtype is torch.float16
    assert torch.equal(half.dequantize(), weight.dequantize().half())
    assert torch.equal(weight + 1, weight.dequantize() + 1)
    assert "Q4_K" in repr(weight)


@pytest.mark.parametrize("kind", ["F32", "BF16", *FORMATS])
def test_a_loaded_model_is_that_of_transformers(kind, tmp_path):
    path = tmp_path / "model.gguf"
    write_llama(path, CONFIG, kind)
    theirs = LlamaForCausalLM(CONFIG)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=theirs)["tensors"]
    theirs.load_state_dict(tensors)
    ours = load(path, dtype=torch.float32)
    ids = torch.randint(3, 96, (2, 9))
    with torch.no_grad():
        expected = theirs.eval()(ids).logits
        torch.testing.assert_close(ours(ids).logits, expected, rtol=1e-3, atol=1e-4)
        compiled = tofuse.compile(ours, hand_back=False)
        torch.testing.assert_close(compiled(ids).logits, expected, rtol=1e-3, atol=1e-4)
    if kind in FORMATS:
        matrices = [p for p in ours.parameters() if p.dim() == 2]
        assert all(isinstance(p, GgufWeight) for p in matrices)
    assert not any(p.requires_grad or p.is_meta for p in ours.parameters())


def test_a_weight_cannot_be_written():
    """Nothing is lost without a word: not by load_state_dict either."""
    weight, other = random_weight("Q4_K", 8), torch.ones(8, 512)
    for write in (
        lambda: weight.zero_(),
        lambda: weight.copy_(other),
        lambda: weight.copy_(random_weight("Q6_K", 8)),
        lambda: weight.__setitem__(0, 0.0),
        lambda: torch.add(other, 1, out=weight),
    ):
        with pytest.raises(RuntimeError, match="cannot be written"):
            write()
    same = random_weight("Q4_K", 8).map_parts(lambda part: part + 1)
    weight.copy_(same)
    assert torch.equal(weight.dequantize(), same.dequantize())
    layer = torch.nn.Linear(512, 8, bias=False)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    with pytest.raises(RuntimeError, match="cannot be written"):
        layer.load_state_dict({"weight": other})


@pytest.mark.parametrize("rows", [3, 50])
def test_linear_is_that_of_a_decoded_weight(rows):
    """In its dtypes, errors and gradients, whatever the number of rows."""
    weight = torch.nn.Parameter(random_weight("Q5_1", 40, dtype=torch.bfloat16))
    x = torch.randn(rows, 512)
    with pytest.raises(RuntimeError):
        F.linear(x, weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert F.linear(x, weight).dtype is torch.bfloat16
    x = x.bfloat16().requires_grad_()
    F.linear(input=x, weight=weight, bias=None).sum().backward()
    assert weight.grad is None and x.grad is not None
    torch.testing.assert_close(x.grad[0], weight.dequantize().sum(0), rtol=0.05, atol=0.05)
    double = random_weight("Q5_1", 40, dtype=torch.float64)
    x = torch.randn(rows, 512, dtype=torch.float64)
    torch.testing.assert_close(F.linear(x, double), F.linear(x, double.dequantize()))


def test_an_embedding_has_no_negative_rows():
    with pytest.raises((IndexError, RuntimeError)):
        F.embedding(torch.tensor([-1]), random_weight("Q4_0", 5))
    none = F.embedding(torch.zeros(0, 2, dtype=torch.int64), random_weight("Q4_0", 5))
    assert none.shape == (0, 2, 512)


def test_what_cannot_be_loaded(tmp_path):
    (tmp_path / "text.gguf").write_text("no model" * 10)
    with pytest.raises(tofuse.InputError, match=r"text\.gguf"):
        load(tmp_path / "text.gguf")
    write_llama(tmp_path / "whole.gguf", CONFIG, "Q8_0")
    data = (tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "part.gguf").write_bytes(data[: len(data) // 2])
    with pytest.raises(tofuse.InputError, match=r"part\.gguf"):
        load(tmp_path / "part.gguf")
    with pytest.raises(tofuse.InputError, match="IQ2_XS"):
        GgufWeight.from_bytes(torch.zeros(2, 74, dtype=torch.uint8), "IQ2_XS", torch.float32)
    with pytest.raises(tofuse.InputError, match="no file"):
        load(tmp_path / "model.gguf")
