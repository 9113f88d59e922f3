"""Generate text with transformers: caches, samples, beams, ragged prompts and a draft model."""

from collections.abc import Callable

import torch
from transformers import LlamaConfig, LlamaForCausalLM

REQUIRES = ("transformers",)
TOKENS = 16
PROMPT = torch.arange(3, 35)[None]

FORMS: dict[str, dict[str, object]] = {
    "static cache": {"cache_implementation": "static"},
    "cache that grows": {},
    "samples": {"do_sample": True, "top_k": 20, "temperature": 0.7},
    "beams": {"num_beams": 3},
}


def model(layers: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=1000,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    ).eval()


def step(
    backend: str | None = "tofuse", *, prompt: torch.Tensor = PROMPT, **options: object
) -> Callable[[], torch.Tensor]:
    """Return a call that generates tokens; `options` are those of `generate`.

    On a GPU, `compile_config=CompileConfig(backend="tofuse")` does the same; transformers does not
    compile by itself on a CPU.
    """
    torch.compiler.reset()  # the forms here are more than a process usually runs
    net = model()
    if backend is not None:
        net.compile(backend=backend)
    options = options or FORMS["static cache"]

    def generate() -> torch.Tensor:
        torch.manual_seed(0)  # of the samples
        return net.generate(
            prompt,
            **{"do_sample": False, "max_new_tokens": TOKENS, "pad_token_id": 0, **options},
        )

    return generate


def main() -> None:
    for name, options in FORMS.items():
        actual, expected = step("tofuse", **options)(), step(None, **options)()
        assert torch.equal(actual, expected), name
        print(f"{name}: {TOKENS} tokens, the same as in eager")
    ragged, mask = PROMPT.repeat(2, 1), torch.ones(2, 32, dtype=torch.int64)
    ragged[1, :20], mask[1, :20] = 0, 0  # the second prompt has 12 tokens
    draft = model(layers=1)
    draft.compile(backend="tofuse")
    for name, prompt, options in (
        ("ragged prompts", ragged, {"attention_mask": mask}),
        ("a draft model", PROMPT, {"assistant_model": draft}),
    ):
        actual, expected = (step(b, prompt=prompt, **options)() for b in ("tofuse", None))
        assert torch.equal(actual, expected), name
        print(f"{name}: the same tokens as in eager")
    print(f"{TOKENS} tokens, the same as in eager")


if __name__ == "__main__":
    main()
