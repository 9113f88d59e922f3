"""Switch LoRA adapters of peft: each adapter gets a program, once."""

from collections.abc import Callable

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import tofuse

REQUIRES = ("peft", "transformers")
ADAPTERS = ("one", "two")
TOKENS = torch.arange(64)[None]


def model() -> PeftModel:
    torch.manual_seed(0)
    base = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1000,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    ).eval()
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    net = get_peft_model(base, lora, ADAPTERS[0])
    net.add_adapter(ADAPTERS[1], lora)
    return net


def step(backend: str | None = "tofuse") -> Callable[[], torch.Tensor]:
    """Return a call that runs the model with both adapters."""
    net = model()
    call = net if backend is None else torch.compile(net, backend=backend)

    @torch.no_grad()
    def run() -> torch.Tensor:
        logits = []
        for adapter in ADAPTERS:
            net.set_adapter(adapter)
            logits.append(call(TOKENS).logits)
        return torch.stack(logits)

    return run


def main() -> None:
    compiled = step("tofuse")
    actual, expected = compiled(), step(None)()
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    before = len(tofuse.explain_recompiles().recompiles)
    for _ in range(3):
        compiled()
    assert len(tofuse.explain_recompiles().recompiles) == before
    print("six switches of adapters, and nothing was compiled again")


if __name__ == "__main__":
    main()
