"""One measurement in a process: `python -m suites.language_models.process CASE FOLDER`.

It prints JSON. FOLDER has the GGUF files; a case is `part/format/contender/batch`.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, StaticCache

import tofuse
from benchmarks.bench.memory import peak, reset_peak
from suites.language_models.models import CONFIG, Adapted, llama, stored_bytes

PROMPT, TOKENS = 512, 32
GGUF_KINDS = ("Q4_0", "Q8_0")
Numbers = dict[str, float]


def main(case: str, folder: Path) -> Numbers:
    """Return the numbers of a case."""
    warnings.simplefilter("ignore")
    part, kind, contender, batch = case.split("/")
    match part, contender:
        case "tokens", "llama.cpp":
            return _llama_cpp(folder / f"{kind}.gguf")
        case "tokens", "OpenVINO":
            return _openvino(folder / f"{kind}.gguf")
        case "tokens", _:
            return _tokens(kind, contender, int(batch), folder)
        case "machine", _:
            return _machine()
        case "tuning", _:
            return _tuning(kind, contender, int(batch))
    raise ValueError(case)


def _compiled(function: Callable[..., object], contender: str) -> Callable[..., object]:
    match contender:
        case "tofuse":
            return tofuse.compile(function, hand_back=False)
        case "Inductor":
            return torch.compile(function, options={"freezing": True, "max_autotune": True})
        case "Inductor, training":
            return torch.compile(function)
    return function


def _tokens(kind: str, contender: str, batch: int, folder: Path) -> Numbers:
    """Time a prompt and the tokens after it: with a static cache, greedily."""
    if kind in GGUF_KINDS:
        from tofuse.integrations.gguf import load

        model = load(folder / f"{kind}.gguf")
    else:
        model = llama(kind)
    forward = _compiled(model.forward, contender)
    prompt = torch.randint(3, CONFIG.vocab_size, (batch, PROMPT))
    numbers: Numbers = {}
    loaded = reset_peak()
    with torch.no_grad():
        for run in ("first", "again"):
            cache = StaticCache(config=model.config, max_cache_len=PROMPT + TOKENS)

            def step(ids: Tensor, cache: StaticCache = cache) -> Tensor:
                out = forward(
                    input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1
                )
                return out.logits[:, -1:].argmax(-1)  # type: ignore[attr-defined]

            begin = time.perf_counter()
            token = step(prompt)
            numbers[f"{run}_prompt_s"] = time.perf_counter() - begin
            times = []
            for _ in range(TOKENS):
                begin = time.perf_counter()
                token = step(token)
                times.append(time.perf_counter() - begin)
            numbers[f"{run}_token_s"] = times[0]
    numbers["tokens_per_s"] = batch / statistics.median(times)
    numbers["used_mb"] = (peak() - loaded) / 1e6
    table = stored_bytes(model.get_input_embeddings().parameters())  # a token reads a row of it
    numbers["weights_mb"] = stored_bytes([*model.parameters(), *model.buffers()]) / 1e6
    numbers["read_mb"] = numbers["weights_mb"] - table / 1e6
    return numbers


def _machine() -> Numbers:
    """Time the read of a gigabyte, in gigabytes a second."""
    data, times = torch.ones(1 << 28), []
    for _ in range(9):
        begin = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - begin)
    return {"read_gb_per_s": data.nbytes / statistics.median(times) / 1e9}


def _tuning(kind: str, contender: str, batch: int) -> Numbers:
    """Time training steps of adapters beside frozen layers, with sequences of 256 tokens."""
    model = llama(kind, _shallow(2))
    model.requires_grad_(False)
    for layer in model.model.layers:
        for parent in (layer.self_attn, layer.mlp):
            for name, child in list(parent.named_children()):
                if name.endswith("_proj"):
                    rows, columns = _shape(child)
                    setattr(parent, name, Adapted(child, columns, rows))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    ids = torch.randint(3, CONFIG.vocab_size, (batch, 256))
    loss_of = _compiled(lambda ids: model(input_ids=ids, labels=ids).loss, contender)
    times, losses, loaded = [], [], reset_peak()
    for n in range(8):
        if n == 2:  # compilation has a peak of its own
            reset_peak()
        begin = time.perf_counter()
        loss = loss_of(ids)
        assert isinstance(loss, Tensor)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin)
        losses.append(float(loss))
    return {
        "first_s": times[0],
        "step_s": statistics.median(times[2:]),
        "step_mb": (peak() - loaded) / 1e6,
        "loss": losses[-1],
    }


def _shape(layer: torch.nn.Module) -> tuple[int, int]:
    """Return the rows and columns of a linear layer in any format."""
    weight = getattr(layer, "weight", None)
    if weight is not None:
        return tuple(weight.shape)
    codes = layer.codes
    assert isinstance(codes, Tensor)
    return len(codes), codes[0].numel() * (2 if codes.dtype is torch.uint8 else 1)


def _shallow(layers: int) -> LlamaConfig:
    return LlamaConfig(**{**CONFIG.to_dict(), "num_hidden_layers": layers})


def _llama_cpp(path: Path) -> Numbers:
    """Time llama.cpp. It quantizes activations to eight bits."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = torch.get_num_threads()
    params.n_ctx, params.n_gpu_layers = PROMPT + 2 * TOKENS, 0
    server = xllamacpp.Server(params)
    for _ in range(2):
        prompt = torch.randint(3, CONFIG.vocab_size, (PROMPT,)).tolist()
        request = {"prompt": prompt, "n_predict": TOKENS, "ignore_eos": True, "cache_prompt": False}
        answer = server.handle_completions({**request, "temperature": 0})
        answer = json.loads(answer) if isinstance(answer, (str, bytes)) else answer
        timings = (answer[0] if isinstance(answer, list) else answer)["timings"]
    return {
        "again_prompt_s": timings["prompt_ms"] / 1e3,
        "tokens_per_s": timings["predicted_per_second"],
        "peak_mb": peak() / 1e6,
    }


def _openvino(path: Path) -> Numbers:
    """Time OpenVINO GenAI, without dynamic quantization of activations."""
    import numpy as np
    import openvino
    import openvino_genai

    threads = torch.get_num_threads()
    options = {"INFERENCE_NUM_THREADS": threads, "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    begin = time.perf_counter()
    pipeline = openvino_genai.LLMPipeline(str(path), "CPU", **options)
    first = time.perf_counter() - begin
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = TOKENS
    config.ignore_eos, config.do_sample = True, False
    shape, random = (1, PROMPT), np.random.default_rng(0)
    for _ in range(2):
        ids = openvino.Tensor(random.integers(3, CONFIG.vocab_size, shape).astype(np.int64))
        mask = openvino.Tensor(np.ones(shape, np.int64))
        result = pipeline.generate(openvino_genai.TokenizedInputs(ids, mask), config)
    metrics = result.perf_metrics
    return {
        "first_prompt_s": first,
        "again_prompt_s": metrics.get_ttft().mean / 1e3,
        "tokens_per_s": 1e3 / metrics.get_tpot().mean,
        "peak_mb": peak() / 1e6,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
