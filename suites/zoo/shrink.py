"""Makes configurations of `transformers` small, by rules on the names of their fields."""

import inspect
import re
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig, ResNetConfig

VOCABULARY, WIDTH, HEADS, SIDE = 128, 32, 4, 32
HEADS_FIELD = "num_attention_heads"
Field = Any  # of a configuration: the classes of models have no type in common


def small_config(model_type: str, changes: dict[str, Field] | None = None) -> PreTrainedConfig:
    """Return a small configuration of a model type; `changes` win over the rules."""
    return _shrink(CONFIG_MAPPING[model_type], changes or {})


def _shrink(config_class: type[PreTrainedConfig], changes: dict[str, Field]) -> PreTrainedConfig:
    default = config_class()
    fields: dict[str, Field] = {}
    for name in inspect.signature(config_class.__init__).parameters:
        path = f"{name}__"
        below = {k.removeprefix(path): v for k, v in changes.items() if k.startswith(path)}
        if name in changes:
            fields[name] = changes[name]
        elif name == "backbone_config":
            fields[name] = _small_backbone()
        elif name in config_class.sub_configs:
            value = getattr(default, name, None)
            if isinstance(value, PreTrainedConfig):
                fields[name] = _shrink(type(value), below)
        else:
            value = getattr(default, name, None)
            small = _small_field(name, value)
            if name == "num_key_value_heads" and value == getattr(
                default, "num_attention_heads", 0
            ):
                small = HEADS
            if small is not value:
                fields[name] = small
    return config_class(**fields)


def _small_field(name: str, value: Field) -> Field:
    """Return the field's small value; the same object if no rule makes it smaller."""
    for pattern, limit in RULES:
        if not re.fullmatch(pattern, name):
            continue
        if isinstance(value, bool):
            return value
        if isinstance(limit, list):
            if isinstance(value, list | tuple) and all(isinstance(v, int) for v in value):
                return [min(v, limit[min(k, len(limit) - 1)]) for k, v in enumerate(value)]
        elif isinstance(value, int | float) and value > limit:
            return type(value)(limit)
    return value


def _small_backbone() -> PreTrainedConfig:
    stages: dict[str, Field] = {"out_features": ["stage1", "stage2", "stage3", "stage4"]}
    return ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        **stages,
    )


# The first rule that matches the name and the kind of its value wins: a limit for numbers, limits
# by place for lists.
RULES: tuple[tuple[str, float | list[int]], ...] = (
    (r".*(dropout|layerdrop|pdrop|drop_rate|drop_path_rate|dropout_(rate|prob)|_drop|jitter.*)", 0),
    (r".*dropout.*", 0),
    (r"mask_(time|feature)_prob", 0),
    (r".*vocab(ulary)?_size.*|n_vocab|n_tokens|entity_vocab_size", VOCABULARY),
    (r"pad_token_id|.*pad_token_id", 0),
    (r"bos_token_id|.*start_token_id", 1),
    (r".*eos_token_id", 2),
    (r".*image_token.*|.*image_seq.*", 120),
    (r".*video_token.*", 121),
    (r".*audio_token.*", 122),
    (r".*token_(id|index)", 3),
    (r"num_key_value_heads|n_kv_heads|num_kv_heads|.*num_kv_heads|.*num_key_value_heads", 2),
    (r".*(heads|n_head|num_head)", HEADS),
    (r"(depths?|.*layers|layers_.*|num_blocks|depth|.*num_layers|n_layers?|.*_depth)", 2),
    (r"depths|num_blocks|block_repeats|num_conv_layers", [1]),
    (r"num_(attention_)?heads|.*attention_heads", [1, 2, 2, 4]),
    (r".*hidden_layers_.*|num_hidden_groups", 2),
    (r"num_(local_)?experts|n_routed_experts|.*num_experts|moe_num_experts", 4),
    (r"num_experts_per_tok(en)?|top_k_experts|moe_top_?k|.*experts_per_tok|moe_k", 2),
    (r".*(head_dim|d_kv|attention_head_size|head_size|kv_channels|d_head)", WIDTH // HEADS),
    (r".*(intermediate_size|ffn_dim|d_ff|d_inner|ffn_size|n_inner|dim_ff|mlp_dim|ff_dim).*", 48),
    (r".*lora_rank", 16),
    (r".*(image_size|img_size|crop_size|input_size)", SIDE),
    (r".*(image_size|img_size|crop_size|input_size)", [SIDE]),
    (r".*patch_size", 8),
    (r".*patch_size", [8]),
    (r"(hidden_sizes|embed_dims|encoder_hidden_sizes|neck_hidden_sizes|dims?|widths)", [8, 16, 32]),
    (r"decoder_(hidden_size|depth)|.*(hidden_size|d_model|n_embd|embed_dim|embedding_size)", WIDTH),
    (r".*(hidden_dim|projection_dim|emb_dim|_dim|_channels|_size_out|lru_width|d_embed)", WIDTH),
    (r"dim|.*hidden_channels|num_filters|fpn_feature_size|fusion_hidden_size", WIDTH),
    (r"(conv_dim|.*channels|.*_dims)", [32]),
    (r"max_.*positions?(_embeddings)?|n_positions|n_ctx|max_seq_len.*|max_sequence_length", 64),
    (r".*num_queries|num_.*latents|num_labels", 8),
    (r"num_mel_bins|.*mel_bins", 16),
    (r"num_pos_feats", WIDTH // 2),
    (r"state_size|.*d_state|ssm_state_size", 8),
)
