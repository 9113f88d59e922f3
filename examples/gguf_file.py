"""Load a GGUF file with its weights in their codes, and generate text."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants

import tofuse
from tofuse.integrations.gguf import load

REQUIRES = ("gguf", "transformers")
TOKENS, VOCABULARY, WIDTH, HIDDEN, HEADS = 16, 1000, 256, 512, 4
Q4_0 = GGMLQuantizationType.Q4_0


def write(path: Path) -> None:
    """Write a Llama of one layer with random weights. You would have a file from a hub."""
    random, writer = np.random.default_rng(0), GGUFWriter(path, "llama")
    writer.add_name("random")
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(VOCABULARY)
    shapes = {"token_embd": (VOCABULARY, WIDTH), "output": (VOCABULARY, WIDTH)}
    for name in ("q", "k", "v", "output"):
        shapes[f"blk.0.attn_{name}"] = (WIDTH, WIDTH)
    for name in ("gate", "up"):
        shapes[f"blk.0.ffn_{name}"] = (HIDDEN, WIDTH)
    shapes["blk.0.ffn_down"] = (WIDTH, HIDDEN)
    for name, shape in shapes.items():
        numbers = random.standard_normal(shape, dtype=np.float32) * 0.05
        writer.add_tensor(f"{name}.weight", quants.quantize(numbers, Q4_0), raw_dtype=Q4_0)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def step(backend: str | None = "tofuse") -> Callable[[], torch.Tensor]:
    """Return a call that generates tokens."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write(path)
        net = load(path, dtype=torch.float32)
    if backend is not None:
        net.compile(backend=backend)
    prompt = torch.arange(3, 35)[None]
    options = {"cache_implementation": "static", "do_sample": False, "pad_token_id": 0}
    return lambda: net.generate(prompt, max_new_tokens=TOKENS, eos_token_id=None, **options)


def main() -> None:
    actual, expected = step("tofuse")(), step(None)()
    assert torch.equal(actual, expected)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write(path)
        report = tofuse.explain(load(path))(torch.arange(3, 4)[None])
    assert report.peak_bytes < WIDTH * HIDDEN  # no decoded weight
    print(f"peak memory of a token: {report.peak_bytes} B")
    print(f"{TOKENS} tokens of a Q4_0 file, the same as in eager")


if __name__ == "__main__":
    main()
