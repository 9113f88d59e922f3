"""The cases, each in a process of its own; and docs/language-models.md."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from suites.harness import RESULTS, ROOT, Result, run_process
from suites.language_models.gguf_llama import write_llama
from suites.language_models.models import CONFIG
from suites.language_models.process import GGUF_KINDS, PROMPT, TOKENS

SUITE = "language_models"
PAGE = ROOT / "docs" / "language-models.md"
TEXT_ABOVE_TABLES = ROOT / "suites" / "language_models" / "text.md"
FILES = RESULTS / "gguf"
PLAIN_KINDS = ("bf16", "int8", "int4")
PROCESS_TIMEOUT_S = 540.0


def list_cases() -> list[str]:
    """Return the cases as `part/format/contender/batch`."""
    cases = ["machine/-/-/1"]
    for kind in PLAIN_KINDS:
        cases += [f"tokens/{kind}/{who}/1" for who in ("eager", "Inductor", "tofuse")]
        cases += [f"tokens/{kind}/{who}/8" for who in ("eager", "tofuse")]
    for kind in GGUF_KINDS:
        cases += [f"tokens/{kind}/{who}/1" for who in ("llama.cpp", "OpenVINO", "tofuse")]
        cases.append(f"tokens/{kind}/tofuse/8")
    for kind in ("bf16", "int4"):
        cases += [f"tuning/{kind}/{who}/2" for who in ("eager", "Inductor, training", "tofuse")]
    return cases


def run_case(case: str) -> Result:
    """Run a case in a new process with empty caches."""
    _, kind, _, _ = case.split("/")
    FILES.mkdir(parents=True, exist_ok=True)
    path = FILES / f"{kind}.gguf"
    if kind in GGUF_KINDS and not path.exists():
        write_llama(path, CONFIG, kind)
    with tempfile.TemporaryDirectory() as cache:
        arguments = case, str(FILES)
        numbers = run_process(
            "suites.language_models.process", arguments, Path(cache), PROCESS_TIMEOUT_S
        )
    return Result(case, "ok", "", json.loads(numbers))


def page(results: dict[str, Result]) -> str:
    """Return docs/language-models.md."""
    rate = _number(results, "machine/-/-/1", "read_gb_per_s")
    lines = [
        TEXT_ABOVE_TABLES.read_text(),
        f"The machine reads {rate:.0f} GB a second with {os.cpu_count()} threads.",
        "",
        f"## A prompt of {PROMPT} tokens, and {TOKENS} more",
        "",
        "| weights | streams | contender | tokens a second | share of the read rate | prompt, s | "
        "first prompt, s | first token, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_token_row(case, result, rate) for case, result in _ok(results, "tokens")]
    lines += [
        "",
        "## Adapters beside frozen weights, two sequences of 256 tokens",
        "",
        "| weights | contender | step, ms | memory in use by steps, MB | first step, s |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [_tuning_row(case, result) for case, result in _ok(results, "tuning")]
    return "\n".join([*lines, ""])


def _ok(results: dict[str, Result], part: str) -> list[tuple[str, Result]]:
    """Return the results of a part that have numbers, in the order of the cases."""
    cases = [case for case in list_cases() if case.startswith(f"{part}/") and case in results]
    return [(case, results[case]) for case in cases if not results[case].failed]


def _number(results: dict[str, Result], case: str, name: str) -> float:
    value = results[case].data.get(name, 0.0) if case in results else 0.0
    return value if isinstance(value, float) else 0.0


def _token_row(case: str, result: Result, rate: float) -> str:
    _, kind, contender, batch = case.split("/")
    data = {name: float(x) for name, x in result.data.items() if isinstance(x, int | float)}
    share = data.get("read_mb", 0.0) / 1e3 * data["tokens_per_s"] / int(batch) / max(rate, 1e-9)
    shown = f"{share:.2f}" if share else ""
    cells = [kind, batch, contender, f"{data['tokens_per_s']:.1f}", shown]
    for name in ("again_prompt_s", "first_prompt_s", "first_token_s"):
        cells.append(f"{data[name]:.2f}" if name in data else "")
    return f"| {' | '.join(cells)} |"


def _tuning_row(case: str, result: Result) -> str:
    _, kind, contender, _ = case.split("/")
    data = {name: float(x) for name, x in result.data.items() if isinstance(x, int | float)}
    cells = [kind, contender.split(",")[0], f"{1e3 * data['step_s']:.0f}"]
    cells += [f"{data['step_mb']:.0f}", f"{data['first_s']:.1f}"]
    return f"| {' | '.join(cells)} |"
