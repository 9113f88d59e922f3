"""Checks models of transformers and timm: training, an optimiser step, generation.

`make models` runs it and writes docs/models.md; `--time` times the first steps instead.
"""

import logging
import sys

from suites import harness
from suites.harness import Result
from suites.zoo import document, timm_models, transformers_models
from suites.zoo.check_model import check_model
from suites.zoo.example import Example

CHECKS, TIMES = "models", "models-time"  # the journals


def list_cases() -> list[str]:
    return [
        *(f"transformers/{name}" for name in transformers_models.MODELS),
        *(f"timm/{name}" for name in timm_models.MODELS),
    ]


def run_case(case: str) -> Result:
    logging.disable(logging.CRITICAL)
    found = check_model(build(case))
    return Result(
        case,
        "failed" if found.faults else "ok",
        "; ".join(found.faults),
        {
            **found.ratios,
            "graphs": found.graphs,
            "breaks": found.breaks,
            "fallbacks": found.fallbacks,
            "notes": found.notes,
        },
    )


def build(case: str) -> Example:
    """Return the model of a case with its inputs."""
    library, name = case.split("/")
    return timm_models.build(name) if library == "timm" else transformers_models.build(name)


def main() -> None:
    timing = "--time" in sys.argv
    if timing:
        sys.argv.remove("--time")
    arguments = harness.parse_arguments("Check small models against eager and float64.")
    if timing:
        results = harness.run_suite("suites.model_times", TIMES, arguments)
    else:
        results = harness.run_suite("suites.models", CHECKS, arguments)
    print(harness.summarize(results))
    document.write(list_cases(), harness.load_results(CHECKS), harness.load_results(TIMES))
    raise SystemExit(any(result.failed for result in results.values()))


if __name__ == "__main__":
    main()
