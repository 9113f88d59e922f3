"""Architectures of `transformers`, made small by rules, with random weights."""

import inspect
from collections.abc import Callable

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from suites.zoo.example import Example, Inputs, seed_parameters, without_randomness
from suites.zoo.shrink import SIDE, VOCABULARY, Field, small_config

BATCH, LENGTH, FRAMES, SAMPLES = 2, 12, 64, 1600


def build(model_type: str) -> Example:
    """Return a model of the type with inputs, and a prompt if it generates text."""
    torch.manual_seed(0)
    config = small_config(model_type, CHANGES.get(model_type))
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    task, name = task_of(model_type)
    model: PreTrainedModel = getattr(transformers, name)(config)
    seed_parameters(without_randomness(model))
    inputs = TASKS[task](model)
    prompt: Inputs = {}
    if task in GENERATES and model.can_generate():
        prompt = {k: x for k, x in inputs.items() if k not in ("labels", "decoder_input_ids")}
    return Example(model.train(), inputs, prompt)


def task_of(model_type: str) -> tuple[str, str]:
    """Return the first task that the type has a model for, and that model's class."""
    for task in TASKS:
        names = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")
        if model_type in names:
            name = names[model_type]
            return task, name if isinstance(name, str) else name[0]
    raise ValueError(f"transformers has no model of type {model_type}")


def _words() -> Tensor:
    return torch.randint(5, VOCABULARY - 20, (BATCH, LENGTH))


def _labelled_words(model: PreTrainedModel) -> Inputs:
    ids = _words()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def _plain_words(model: PreTrainedModel) -> Inputs:
    ids = _words()
    return {"input_ids": ids}


def _images(model: PreTrainedModel) -> Inputs:
    channels = _number(model.config, "num_channels", 3)
    return {"pixel_values": torch.randn(BATCH, channels, *[_side(model.config)] * 2)}


def _labelled_images(model: PreTrainedModel) -> Inputs:
    return {**_images(model), "labels": torch.randint(0, 2, (BATCH,))}


def _images_and_words(model: PreTrainedModel) -> Inputs:
    return {**_images(model), "input_ids": _words()}


def _videos(model: PreTrainedModel) -> Inputs:
    frames = _number(model.config, "num_frames", 4)
    name = "pixel_values" if _takes(model, "pixel_values") else "pixel_values_videos"
    return {name: torch.randn(1, frames, 3, *[_side(model.config)] * 2)}


def _sound(model: PreTrainedModel) -> Inputs:
    """Return waves, or a spectrogram in the layout that the model takes."""
    if not _takes(model, "input_features"):
        return {"input_values": torch.randn(BATCH, SAMPLES)}
    bins = _number(model.config, "num_mel_bins", 16)
    bins = _number(model.config, "feature_projection_input_dim", bins)
    if model.config.model_type == "whisper":
        positions = _number(model.config, "max_source_positions", 0)
        return {"input_features": torch.randn(BATCH, bins, 2 * positions)}
    return {"input_features": torch.randn(BATCH, FRAMES, bins)}


def _speech(model: PreTrainedModel) -> Inputs:
    return {**_sound(model), "labels": _words()}


def _takes(model: PreTrainedModel, argument: str) -> bool:
    return argument in inspect.signature(model.forward).parameters


def _side(config: PreTrainedConfig) -> int:
    return _number(config, "image_size", SIDE)


def _number(config: PreTrainedConfig, name: str, default: int) -> int:
    """Return a number of the configuration or of one that it holds."""
    parts = [config, *(getattr(config, part, None) for part in config.sub_configs)]
    for part in parts:
        value = getattr(part, name, None)
        if isinstance(value, list | tuple):
            value = value[0]
        if isinstance(value, int):
            return value
    return default


GENERATES = ("SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM", "SPEECH_SEQ_2_SEQ")
# The first task wins.
TASKS: dict[str, Callable[[PreTrainedModel], Inputs]] = {
    "SEQ_TO_SEQ_CAUSAL_LM": _labelled_words,
    "SPEECH_SEQ_2_SEQ": _speech,
    "MASKED_LM": _labelled_words,
    "CAUSAL_LM": _labelled_words,
    "IMAGE_CLASSIFICATION": _labelled_images,
    "OBJECT_DETECTION": _images,
    "MASK_GENERATION": _images,
    "AUDIO_CLASSIFICATION": _sound,
    "UNIVERSAL_SEGMENTATION": _images,
    "SEMANTIC_SEGMENTATION": _images,
    "DEPTH_ESTIMATION": _images,
    "VIDEO_CLASSIFICATION": _videos,
    "ZERO_SHOT_IMAGE_CLASSIFICATION": _images_and_words,
    "IMAGE_TO_IMAGE": _images,
}
# Where the rules give no valid configuration.
CHANGES: dict[str, dict[str, Field]] = {
    "codegen": {"rotary_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 8},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2},
    "longformer": {"attention_window": 4},  # rows of padding are nan in float64
    "mamba2": {"num_heads": 8},
    "swin": {"window_size": 4, "depths": [1, 1], "num_heads": [2, 4]},
}
NAMES = """
    albert bart bert big_bird bigbird_pegasus biogpt bitnet bloom clip codegen cohere cohere2
    conditional_detr convbert convnext convnextv2 deberta deberta-v2 deepseek_v3 deformable_detr
    detr diffllama dinov2 distilbert electra falcon falcon_mamba fnet funnel gemma gemma2
    gemma3_text glpn gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj granite hiera ibert jamba
    lfm2 llama llama4_text longformer m2m_100 mamba mamba2 marian mistral mixtral mobilebert
    mobilenet_v2 mobilevit modernbert mpnet mpt mt5 nystromformer openai-gpt opt pegasus
    pegasus_x phi phi3 poolformer pvt_v2 qwen2 qwen3 qwen3_moe regnet resnet roberta roformer
    rwkv sam segformer sew siglip smollm3 squeezebert stablelm starcoder2 swin swin2sr swinv2 t5
    umt5 videomae vit wav2vec2 wav2vec2-conformer wavlm whisper xlm xlnet yolos yoso
"""
MODELS = tuple(NAMES.split())
