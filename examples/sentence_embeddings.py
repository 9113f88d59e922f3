"""Embed sentences with sentence-transformers."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizer

REQUIRES = ("sentence_transformers",)
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] to fuse or not that is the question"
SENTENCES = ["to fuse or not to fuse", "that is the question"]


def model() -> SentenceTransformer:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder, "vocab.txt")
        vocabulary.write_text("\n".join(WORDS.split()))
        BertTokenizer(str(vocabulary)).save_pretrained(folder)
        config = BertConfig(
            vocab_size=len(WORDS.split()), hidden_size=128, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=256,
        )  # fmt: skip
        BertModel(config).save_pretrained(folder)
        return SentenceTransformer(modules=[Transformer(folder), Pooling(128)], device="cpu")


def step(backend: str | None = "tofuse") -> Callable[[], torch.Tensor]:
    """Return a call that embeds two sentences."""
    net = model()
    if backend is not None:
        net.compile(backend=backend)
    return lambda: net.encode(SENTENCES, convert_to_tensor=True)


def main() -> None:
    actual, expected = step("tofuse")(), step(None)()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    print(f"largest difference from eager {(actual - expected).abs().max():.1e}")


if __name__ == "__main__":
    main()
