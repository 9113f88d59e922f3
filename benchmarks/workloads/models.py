"""Models of two layers with random weights: a training step without optimizer, and inference."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from benchmarks.seeds import Program, Size
from benchmarks.workloads.base import Case, Results, Step

Batch = dict[str, Tensor]
LAYERS = 2


@dataclass(frozen=True)
class Text:
    """Sizes of a text model and of its batch."""

    width: int
    heads: int
    inner: int
    words: int
    batch: int
    length: int


FULL = Text(width=768, heads=12, inner=3072, words=8192, batch=4, length=128)
SMALL = Text(width=32, heads=2, inner=48, words=64, batch=2, length=8)


class Loss(nn.Module):
    """A model that returns only its loss."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: Tensor) -> Tensor:
        loss: Tensor = self.model(**batch).loss
        return loss


class Logits(nn.Module):
    """A model that returns only its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: Tensor) -> Tensor:
        logits: Tensor = self.model(**batch).logits
        return logits


def case(family: str, size: Size, training: bool) -> Case:
    """Return a training step or an inference of the family's model."""
    model, batch = FAMILIES[family](size)
    return train(model, batch) if training else infer(model, batch)


def train(model: nn.Module, batch: Batch) -> Case:
    """Compute the loss and the gradients of all parameters, in training mode."""
    target = Loss(model).train()
    parameters = list(model.parameters())

    def drive(compiled: Program) -> Step:
        def run() -> Results:
            for parameter in parameters:
                parameter.grad = None
            loss = compiled(**batch)
            assert isinstance(loss, Tensor)
            loss.backward()
            return (loss.detach(),)

        return Step(run, lambda: None)

    return Case(target, drive)


def infer(model: nn.Module, batch: Batch) -> Case:
    """Compute the logits in evaluation mode without gradients."""
    target = Logits(model).eval()
    batch = {key: value for key, value in batch.items() if key != "labels"}
    if isinstance(model, T5ForConditionalGeneration):
        batch["decoder_input_ids"] = batch["input_ids"]

    def drive(compiled: Program) -> Step:
        def run() -> Results:
            with torch.no_grad():
                logits = compiled(**batch)
            assert isinstance(logits, Tensor)
            return (logits,)

        return Step(run, lambda: None)

    return Case(target, drive)


def bert(size: Size) -> tuple[nn.Module, Batch]:
    s = text(size)
    config = BertConfig(
        vocab_size=s.words,
        hidden_size=s.width,
        num_hidden_layers=LAYERS,
        num_attention_heads=s.heads,
        intermediate_size=s.inner,
    )
    return BertForMaskedLM(config), words(s)


def gpt2(size: Size) -> tuple[nn.Module, Batch]:
    s = text(size)
    config = GPT2Config(
        vocab_size=s.words,
        n_embd=s.width,
        n_layer=LAYERS,
        n_head=s.heads,
        n_inner=s.inner,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config), words(s)


def llama(size: Size) -> tuple[nn.Module, Batch]:
    s = text(size)
    config = LlamaConfig(
        vocab_size=s.words,
        hidden_size=s.width,
        num_hidden_layers=LAYERS,
        num_attention_heads=s.heads,
        num_key_value_heads=s.heads // 2,
        intermediate_size=s.inner,
        use_cache=False,
    )
    return LlamaForCausalLM(config), words(s)


def t5(size: Size) -> tuple[nn.Module, Batch]:
    s = text(size)
    config = T5Config(
        vocab_size=s.words,
        d_model=s.width,
        d_kv=s.width // s.heads,
        d_ff=s.inner,
        num_layers=LAYERS,
        num_decoder_layers=LAYERS,
        num_heads=s.heads,
        use_cache=False,
    )
    config.decoder_start_token_id = 0
    return T5ForConditionalGeneration(config), words(s)


def vit(size: Size) -> tuple[nn.Module, Batch]:
    s = text(size)
    side, patch = (224, 16) if size == "full" else (16, 8)
    config = ViTConfig(
        hidden_size=s.width,
        num_hidden_layers=LAYERS,
        num_attention_heads=s.heads,
        intermediate_size=s.inner,
        image_size=side,
        patch_size=patch,
    )
    return ViTForImageClassification(config), images(s.batch, side)


def resnet(size: Size) -> tuple[nn.Module, Batch]:
    """Return a model of two stages of two bottlenecks."""
    full = size == "full"
    config = ResNetConfig(
        embedding_size=64 if full else 8,
        hidden_sizes=[256, 512] if full else [16, 32],
        depths=[LAYERS, LAYERS],
    )
    return ResNetForImageClassification(config), images(8, 112) if full else images(2, 32)


def text(size: Size) -> Text:
    return FULL if size == "full" else SMALL


def words(s: Text) -> Batch:
    """Return random words, labelled with themselves."""
    ids = torch.randint(1, s.words, (s.batch, s.length))
    return {"input_ids": ids, "labels": ids.clone()}


def images(count: int, side: int) -> Batch:
    pixels = torch.randn(count, 3, side, side)
    return {"pixel_values": pixels, "labels": torch.randint(2, (count,))}


FAMILIES: dict[str, Callable[[Size], tuple[nn.Module, Batch]]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "vit": vit,
    "resnet": resnet,
}
