"""Runs a case of the suite: a seed, or a program and a variant as JSON."""

import dataclasses
import json
import os

from suites.fuzz.generate import generate
from suites.fuzz.program import Program, from_json
from suites.fuzz.run import REFUSALS, Variant, check, torch_has, variants
from suites.harness import Result


def run_case(case: str) -> Result:
    """Return "passed", "refused" (by all variants), "torch" or "failed".

    "torch": torch's own compiler has the fault, too, and no other variant fails.
    """
    if case.startswith("{"):
        program, chosen = parse_case(case)
    else:
        program = generate(int(case))
        chosen = seed_variants(int(case))
    refusals: list[str] = []
    torchs: list[Result] = []
    for variant in chosen:
        try:
            fault = check(program, variant)
        except REFUSALS as error:
            refusals.append(f"{variant}: {error}")
            continue
        if fault is not None:
            data: dict[str, str | int | float | list[str]] = {
                "kind": fault.kind,
                "case": show_case(program, variant),
            }
            detail = f"{fault.kind}, {variant}: {fault.detail}"
            if not torch_has(program, variant, fault):
                return Result(case, "failed", detail, data)
            torchs.append(Result(case, "torch", detail, data))
    if torchs:
        return torchs[0]
    if len(refusals) == len(chosen):
        return Result(case, "refused", "; ".join(refusals))
    return Result(case, "passed")


def seed_variants(seed: int) -> list[Variant]:
    """Return the variants of a seed; workers know the options of the run by their environment."""
    count = int(os.environ.get("FUZZ_VARIANTS", "2"))
    return variants(seed, count, os.environ.get("FUZZ_CANARIES", "some"))


def show_case(program: Program, variant: Variant) -> str:
    """Return a program and its variant as one line."""
    return json.dumps({"program": program.to_json(), "variant": dataclasses.asdict(variant)})


def parse_case(case: str) -> tuple[Program, list[Variant]]:
    """Return the program and the variant that `show_case` wrote."""
    data = json.loads(case)
    variant = data["variant"]
    options = {key: _pairs(variant[key]) for key in ("options", "exact")}
    return from_json(data["program"]), [Variant(**{**variant, **options})]


def _pairs(items: list[list[object]]) -> tuple[tuple[str, object], ...]:
    return tuple((str(k), tuple(v) if isinstance(v, list) else v) for k, v in items)
