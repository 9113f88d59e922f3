"""`make opinfo`: every sample of torch's operator database, compiled and compared with eager.

A case is an operator, a dtype, and a layout or variant: `nn.functional.gelu/bfloat16/transposed`.
`operator/any/errors` runs the inputs on which eager raises. `module/...` and `optimizer/...` are of
torch's databases of modules and optimizers.

With SAMPLES=64 in the environment, a case runs at most 64 samples, spread evenly over all of them.
"""

import functools
import os
import tempfile
import time
from collections.abc import Sequence

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo

from suites.harness import (
    ROOT,
    Result,
    load_results,
    parse_arguments,
    run_suite,
    select_cases,
    summarize,
)
from suites.operators.calls import LAYOUTS, MODES, Call, NoSamplesError, calls_of, error_calls
from suites.operators.check import ALONE, Checker, Findings
from suites.operators.coverage import coverage_page, outdated
from suites.operators.known import known_difference, known_rows
from suites.operators.modules import (
    module_calls,
    module_infos,
    optimizer_calls,
    optimizer_infos,
    optimizer_modes,
)
from suites.operators.program import prepare_torch

# The layouts and variants beside the first are run in one dtype of each kind.
VARIANT_DTYPES = ("float32", "bfloat16", "int64", "complex64")
DTYPES = (*VARIANT_DTYPES, "float64", "float16", "int32", "uint8", "bool")  # as they run

SECONDS_PER_CASE = 0.9  # of one core, over 85 random cases (AMD EPYC)
MODULE_DTYPES = ("float32", "float64")
MANY = 10_000  # failures that are all shown, since a row must match each


def list_cases() -> list[str]:
    """Return all cases: contiguous ones first."""
    names = operators()
    cases = [
        f"{name}/{dtype}/{mode}"
        for mode in MODES
        for dtype in DTYPES
        if mode == LAYOUTS[0] or dtype in VARIANT_DTYPES
        for name, op in names.items()
        if getattr(torch, dtype) in op.supported_dtypes("cpu") and _has_mode(op, mode)
    ]
    cases += [f"{name}/any/errors" for name in names]
    for name, module in module_infos().items():
        modes = ["train", "eval"] if module.train_and_eval_differ else ["train"]
        floats = [d for d in MODULE_DTYPES if getattr(torch, d) in module.dtypes]
        cases += [f"{name}/{dtype}/{mode}" for dtype in floats for mode in modes]
    for name, optimizer in optimizer_infos().items():
        modes = optimizer_modes(optimizer)
        cases += [f"{name}/{dtype}/{mode}" for dtype in MODULE_DTYPES for mode in modes]
    return cases


def run_case(case: str) -> Result:
    """Compare every call of a case with eager."""
    prepare_torch()
    begin = time.monotonic()
    try:
        findings = _check_case(*case.rsplit("/", 2))
    except NoSamplesError as error:
        return Result(case, "skipped", f"no samples: {error}")
    result = summarize_case(case, findings)
    result.data["seconds"] = round(time.monotonic() - begin, 2)
    return result


def _check_case(name: str, dtype_name: str, mode: str) -> Findings:
    dtype = getattr(torch, "float32" if mode == "errors" else dtype_name)
    every = bool(known_rows("/".join((name, dtype_name, mode))))
    checker = Checker(dynamic=mode == "dynamic", alone=MANY if every else ALONE)
    if name.startswith("optimizer/"):
        calls = optimizer_calls(optimizer_infos()[name], dtype, mode)
    elif name.startswith("module/"):
        calls = module_calls(module_infos()[name], dtype, mode)
    elif mode == "errors":
        calls = error_calls(operators()[name])
    else:
        calls = calls_of(operators()[name], dtype, mode)
    chosen = spread(calls, int(os.environ.get("SAMPLES") or len(calls)))
    check = checker.check_steps if name.startswith("optimizer/") else checker.check
    findings = check(chosen)
    findings.left_out = len(calls) - len(chosen)
    return findings


def spread(calls: Sequence[Call], most: int) -> Sequence[Call]:
    """Return at most `most` calls, at equal distances."""
    return [calls[k * len(calls) // most] for k in range(most)] if len(calls) > most else calls


def summarize_case(case: str, findings: Findings) -> Result:
    """Return the result of a case from what its calls showed."""
    details = list(findings.failures)
    if findings.unconfirmed:
        details.append(f"{findings.unconfirmed} more calls differ or were not reached")
    if findings.failures:
        known = None if findings.unconfirmed else known_difference(case, findings.failures)
        status = "failed" if known is None else "known"
    elif not findings.calls:
        status, details = "skipped", ["no samples"]
    elif findings.refused == findings.calls:
        status = "refused"
    else:
        status = "fused" if findings.kernels else "pytorch"
    data: dict[str, str | int | float | list[str]] = {
        "calls": findings.calls,
        "left_out": findings.left_out,
        "refused": findings.refused,
        "graphs": findings.graphs,
        "kernels": findings.kernels,
        "as_torch": len(findings.as_torch),
        "library": [reason for reason, _ in findings.library.most_common(3)],
    }
    if findings.as_torch:
        data["torch_differs"] = findings.as_torch[0]
    return Result(case, status, "; ".join(details), data)


@functools.cache
def operators() -> dict[str, OpInfo]:
    """Return the operators by name and variant: `linalg.norm.subgradients_at_zero`."""
    return {
        f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db
    }


def _has_mode(op: OpInfo, mode: str) -> bool:
    if mode == "inplace":
        return op.inplace_variant is not None
    return mode != "out" or op.supports_out


def main() -> int:
    """Run the chosen cases, and write docs/coverage.md from all results."""
    assert __doc__ is not None
    arguments = parse_arguments(__doc__, timeout=3600.0)  # pooling: 1,440 samples
    waiting = select_cases(list_cases(), load_results("opinfo"), arguments)
    hours = len(waiting) * SECONDS_PER_CASE / arguments.jobs / 3600
    print(f"{len(waiting)} cases, about {hours:.1f} h with {arguments.jobs} jobs")
    with tempfile.TemporaryDirectory(prefix="tofuse-opinfo-") as folder:
        os.environ["TOFUSE_CACHE_DIR"] = folder  # nothing compiled by an older tofuse counts
        results = run_suite("suites.opinfo", "opinfo", arguments)
    print(summarize(results))
    for name in outdated(results):
        print(f"known difference that no longer occurs: {name}")
    page = coverage_page(results, DTYPES)
    (ROOT / "docs" / "coverage.md").write_text(page, encoding="utf-8")
    return int(any(result.failed for result in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
