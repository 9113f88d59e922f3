"""Load a language model from a GGUF file, with its weights as they are stored: `load`.

transformers decodes the weights of a GGUF file while it loads them. Here they stay in their codes,
and a compiled program decodes them in the kernel that multiplies.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tofuse.errors import InputError, TofuseWarning
from tofuse.integrations.gguf_formats import FORMATS, split_rows
from tofuse.integrations.gguf_weight import GgufWeight

try:
    import gguf
    import numpy as np
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
        load_gguf_checkpoint,
    )
except ImportError as error:
    raise ImportError(
        "tofuse.integrations.gguf needs transformers 5 and gguf: pip install transformers gguf"
    ) from error

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BYTES_READ_AT_ONCE = 1 << 20
UNQUANTIZED_FORMATS = frozenset(("F32", "F16", "BF16"))


def load(path: str | os.PathLike[str], dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Return the language model of a GGUF file, for inference.

    Weights in a format of `gguf_formats.FORMATS` are `GgufWeight`s, which stay in their codes.
    Other weights, and quantized ones that the model stores in another shape (GPT-2's, Bloom's,
    merged experts), are decoded to `dtype`, with a warning. Activations have this dtype; decoded
    numbers are computed in float32. A model is saved by `torch.save`, not by `save_pretrained`.

    `load` takes every architecture that transformers loads from a GGUF file. It does not load the
    tokenizer: `AutoTokenizer.from_pretrained(folder, gguf_file=name)` does.

    Raises InputError if there is no such file, if it is no GGUF file or ends too early, or if it
    has no tensor for a weight of the model.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        parsed, reader = load_gguf_checkpoint(str(path)), gguf.GGUFReader(str(path))
    except ValueError as error:
        raise InputError(f"{path} cannot be read as a GGUF file: {error}") from error
    settings = dict(parsed["config"])
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    with no_init_weights():  # parameters that nothing writes take no pages of memory
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    _drop_parameters(model)
    architecture = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=parsed["config"])
    names = get_gguf_hf_weights_map(model, processor)
    parsed["tensors"] = {}
    decoded: set[str] = set()
    weights: dict[str, Tensor] = {}
    for entry in reader.tensors:
        kind = entry.tensor_type.name
        weight = _quantized(path, entry, processor, dtype) if kind in FORMATS else None
        if weight is not None and entry.name in names:
            weights[names[entry.name]] = weight
            continue
        if kind not in UNQUANTIZED_FORMATS:
            decoded.add(kind)
        numbers = gguf.dequantize(entry.data, entry.tensor_type)
        result = processor.process(
            weights=numbers, name=entry.name, tensor_key_mapping=names, parsed_parameters=parsed
        )
        if result.name in names:
            weights[names[result.name]] = torch.from_numpy(np.array(result.weights)).to(dtype)
    weights |= {name: t.to(dtype) for name, t in parsed["tensors"].items()}
    if decoded:
        warnings.warn(
            f"{path.name}: weights in {', '.join(sorted(decoded))} are decoded to {dtype}",
            TofuseWarning,
            stacklevel=2,
        )
    _assign(model, weights, path)
    return model


def _quantized(
    path: Path, entry: gguf.ReaderTensor, processor: TensorProcessor, dtype: torch.dtype
) -> GgufWeight | None:
    """Return a tensor in its codes; None if the model changes more of it than its row order."""
    kind = entry.tensor_type.name
    *rows, columns = (int(n) for n in reversed(entry.shape))
    numbers = np.arange(rows[0] if rows else 1).reshape(-1, *[1] * len(rows))
    try:
        order = processor.process(
            weights=numbers, name=entry.name, tensor_key_mapping={}, parsed_parameters={}
        )
    except (KeyError, TypeError, ValueError):  # it writes its own tensors, such as experts
        return None
    if order.name != entry.name or order.weights.shape != numbers.shape:
        return None
    if sorted(order.weights.ravel()) != sorted(numbers.ravel()):
        return None
    positions = np.argsort(order.weights.ravel())
    if len(rows) > 1 and (positions != np.arange(len(positions))).any():
        return None
    parts = _read_parts(path, int(entry.data_offset), rows, columns, kind, positions)
    return GgufWeight(parts, kind, dtype)


def _read_parts(
    path: Path, offset: int, rows: Sequence[int], columns: int, kind: str, positions: np.ndarray
) -> dict[str, Tensor]:
    """Read the parts of a weight from a file, a few rows at a time; each row goes to its position.

    So the memory that is in use at one time is that of the parts and of a few rows.
    """
    row_bytes = columns // FORMATS[kind].elements * FORMATS[kind].nbytes
    count, step = math.prod(rows), max(1, BYTES_READ_AT_ONCE // row_bytes)
    parts: dict[str, Tensor] = {}
    with path.open("rb") as file:
        file.seek(offset)
        for first in range(0, count, step):
            data = torch.empty((min(step, count - first), row_bytes), dtype=torch.uint8)
            if file.readinto(data.numpy().data.cast("B")) < data.numel():
                raise InputError(f"{path} ends before its last tensor")
            end = first + len(data)
            to = torch.from_numpy(positions[first:end]) if len(rows) == 1 else slice(first, end)
            for name, part in split_rows(data, kind).items():
                if name not in parts:
                    parts[name] = part.new_empty((count, *part.shape[1:]))
                parts[name][to] = part
    return {name: part.unflatten(0, tuple(rows)) for name, part in parts.items()}


def _drop_parameters(model: PreTrainedModel) -> None:
    """Replace the parameters by ones without memory; buffers keep what the model computed."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            empty = torch.nn.Parameter(parameter.to("meta"), requires_grad=False)
            setattr(module, name, empty)
    model.tie_weights()


def _assign(model: PreTrainedModel, weights: Mapping[str, Tensor], path: Path) -> None:
    """Give the model its weights, as parameters that take no gradients."""
    parameters = {n: torch.nn.Parameter(w, requires_grad=False) for n, w in weights.items()}
    missing, _ = model.load_state_dict(parameters, strict=False, assign=True)
    model.tie_weights()
    tied = set(model.all_tied_weights_keys)
    if lacking := [name for name in missing if name not in tied]:
        raise InputError(f"{path.name} has no tensor for {', '.join(lacking[:3])}")
