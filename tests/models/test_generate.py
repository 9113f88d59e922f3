"""Text of language models of several families: ragged prompts, caches that grow and static ones."""

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

import tofuse

FAMILIES = ("Qwen with experts", "Gemma", "Phi", "Mistral", "GPT-2", "Mamba")


def make(family):
    """Return a small model of a family, with sizes that no vector divides."""
    sizes = {
        "vocab_size": 211,
        "hidden_size": 72,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 136,
        "max_position_embeddings": 128,
    }
    match family:
        case "Qwen with experts":
            experts = {"moe_intermediate_size": 40, "shared_expert_intermediate_size": 48}
            config = sizes | experts | {"num_experts": 5}
            return Qwen2MoeForCausalLM(Qwen2MoeConfig.from_dict(config))
        case "Gemma":
            config = sizes | {"head_dim": 12, "sliding_window": 8}
            return Gemma2ForCausalLM(Gemma2Config.from_dict(config))
        case "Phi":
            return Phi3ForCausalLM(Phi3Config.from_dict(sizes | {"pad_token_id": 0}))
        case "Mistral":
            return MistralForCausalLM(MistralConfig.from_dict(sizes | {"sliding_window": 8}))
        case "GPT-2":
            config = {"vocab_size": 211, "n_embd": 72, "n_layer": 2, "n_head": 6}
            return GPT2LMHeadModel(GPT2Config.from_dict(config))
        case "Mamba":
            return MambaForCausalLM(MambaConfig.from_dict(sizes | {"state_size": 8}))


@pytest.mark.filterwarnings("default")  # Dynamo warns of a cached function in Mamba
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cache", [None, "static"])
def test_text_is_that_of_eager(family, cache, fresh_dynamo):
    torch.manual_seed(0)
    model = make(family).eval()
    ids = torch.randint(3, 211, (2, 13))
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    options = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 12}
    options |= {"pad_token_id": 0, "eos_token_id": None, "output_logits": True}
    if cache and family != "Mamba":  # which has no keys
        options["cache_implementation"] = cache

    def generate():
        return model.generate(ids, **options, return_dict_in_generate=True)

    expected = generate()
    model.forward = tofuse.compile(model.forward, hand_back=False)
    actual = generate()
    assert torch.equal(actual.sequences, expected.sequences)
    torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-4, atol=1e-5)
