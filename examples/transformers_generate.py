"""Generate text with transformers: a static cache, and a model compiled in place."""

from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM

REQUIRES = ("transformers",)
TOKENS = 16


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1000,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    ).eval()


def step(backend: str | None = "tofuse") -> Callable[[], torch.Tensor]:
    """Return a call that generates tokens.

    On a GPU, `compile_config=CompileConfig(backend="tofuse")` does the same; transformers does not
    compile by itself on a CPU.
    """
    net = model()
    if backend is not None:
        net.compile(backend=backend)
    prompt = torch.arange(3, 35)[None]

    def generate() -> torch.Tensor:
        return net.generate(
            prompt,
            max_new_tokens=TOKENS,
            do_sample=False,
            pad_token_id=0,
            cache_implementation="static",
        )

    return generate


def main() -> None:
    actual, expected = step("tofuse")(), step(None)()
    assert torch.equal(actual, expected)
    print(f"{TOKENS} tokens, the same as in eager")


if __name__ == "__main__":
    main()
