"""Write a Llama with random weights to a GGUF file, as llama.cpp and OpenVINO read it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from transformers import LlamaConfig

WEIGHT_DEVIATION = 0.02
# Formats that `gguf.quants` cannot write: random codes, with scales that give weights of that size.
RANDOM_CODES = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL")


def write_llama(path: Path, config: LlamaConfig, kind: str, seed: int = 0) -> None:
    """Write a model of this shape; matrices in the format `kind`, such as "Q4_0"."""
    random = np.random.default_rng(seed)
    writer = GGUFWriter(path, "llama")
    vocabulary, heads = config.vocab_size, config.num_attention_heads
    narrow_heads = config.num_key_value_heads or heads
    tokens = ["<unk>", "<s>", "</s>", *(f"t{n}" for n in range(3, vocabulary))]
    writer.add_name("random")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(narrow_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // heads)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (vocabulary - 3))
    writer.add_token_merges(["t 3"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)

    def matrix(name: str, rows: int, columns: int) -> None:
        dtype = GGMLQuantizationType[kind]
        writer.add_tensor(f"{name}.weight", _random(random, rows, columns, dtype), raw_dtype=dtype)

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(config.hidden_size, np.float32))

    width, hidden = config.hidden_size, config.intermediate_size
    narrow = width // heads * narrow_heads
    matrix("token_embd", vocabulary, width)
    for n in range(config.num_hidden_layers):
        norm(f"blk.{n}.attn_norm")
        norm(f"blk.{n}.ffn_norm")
        matrix(f"blk.{n}.attn_q", width, width)
        matrix(f"blk.{n}.attn_k", narrow, width)
        matrix(f"blk.{n}.attn_v", narrow, width)
        matrix(f"blk.{n}.attn_output", width, width)
        matrix(f"blk.{n}.ffn_gate", hidden, width)
        matrix(f"blk.{n}.ffn_up", hidden, width)
        matrix(f"blk.{n}.ffn_down", width, hidden)
    norm("output_norm")
    matrix("output", vocabulary, width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _random(
    random: np.random.Generator, rows: int, columns: int, dtype: GGMLQuantizationType
) -> np.ndarray:
    """Return the bytes of random rows in a format."""
    if dtype.name not in RANDOM_CODES:
        numbers = random.standard_normal((rows, columns), dtype=np.float32) * WEIGHT_DEVIATION
        return gguf.quants.quantize(numbers, dtype)
    elements, nbytes = gguf.GGML_QUANT_SIZES[dtype]
    blocks = random.integers(0, 256, (rows * columns // elements, nbytes), dtype=np.uint8)
    d, m = {"Q2_K": (-4, -2), "Q3_K": (-2, None), "Q6_K": (-2, None)}.get(dtype.name, (0, 2))
    largest = np.abs(gguf.dequantize(_with_scales(blocks, d, m, 1.0), dtype)).max()
    return _with_scales(blocks, d, m, 3 * WEIGHT_DEVIATION / largest).reshape(rows, -1)


def _with_scales(blocks: np.ndarray, d: int, m: int | None, scale: float) -> np.ndarray:
    """Set the scales of blocks, two bytes at `d`, and of their minima at `m`."""
    blocks = blocks.copy()
    for at in [d] if m is None or blocks.shape[1] == 18 else [d, m]:
        at %= blocks.shape[1]
        blocks[:, at : at + 2] = np.array([scale], np.float16).view(np.uint8)
    return blocks
