"""Train a transformers model with Trainer; a callback compiles it."""

import tempfile
from collections.abc import Callable

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from tofuse.integrations.transformers import TofuseCallback

REQUIRES = ("transformers", "accelerate")
STEPS = 8


def model() -> BertForSequenceClassification:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=1000,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=512,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def trainer(net: torch.nn.Module, backend: str | None, folder: str) -> Trainer:
    if backend not in (None, "tofuse"):
        net.compile(backend=backend)
    data = [
        {"input_ids": torch.randint(0, 1000, (64,)), "labels": torch.tensor(k % 2)}
        for k in range(8 * STEPS)
    ]
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        max_steps=STEPS,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
    )
    callbacks = [TofuseCallback()] if backend == "tofuse" else []
    return Trainer(net, arguments, train_dataset=data, callbacks=callbacks)


def step(backend: str | None = "tofuse") -> Callable[[], torch.Tensor]:
    """Return a call that trains for a few steps and returns the mean loss."""
    net = model()

    def train() -> torch.Tensor:
        with tempfile.TemporaryDirectory() as folder:
            return torch.tensor(trainer(net, backend, folder).train().training_loss)

    return train


def main() -> None:
    actual, expected = step("tofuse")(), step(None)()
    torch.testing.assert_close(actual, expected)
    print(f"mean loss {actual:.6f}, in eager {expected:.6f}")


if __name__ == "__main__":
    main()
