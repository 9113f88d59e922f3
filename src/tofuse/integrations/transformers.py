"""Compile the model of a `transformers.Trainer`: `Trainer(..., callbacks=[TofuseCallback()])`.

The Trainer's argument `torch_compile_backend` takes only names that accelerate knows.
"""

from __future__ import annotations

import torch

from tofuse.config import Option
from tofuse.integrations.compile_arguments import compile_arguments

try:
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
except ImportError as error:
    raise ImportError(
        "tofuse.integrations.transformers needs transformers: pip install 'transformers[torch]'"
    ) from error


class TofuseCallback(TrainerCallback):
    """Compiles the Trainer's model in place, for training and evaluation.

    The options are those of `tofuse.compile`. The model keeps its class, and its checkpoints are
    those of the model that is not compiled.

    Raises OptionError for unknown options.
    """

    def __init__(self, **options: Option) -> None:
        self.arguments = compile_arguments(options)
        self.model: torch.nn.Module | None = None

    def on_init_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        """Compile the Trainer's model, unless that is done."""
        if model is not None and model is not self.model:
            model.compile(**self.arguments)
            self.model = model

    on_train_begin = on_init_end  # a Trainer with `model_init` has made its model only now
