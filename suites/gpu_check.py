"""`make gpu-check`: what can be known of the GPU kernels without a GPU, from their machine code.

A case is a program in a dtype for a compute capability: `softmax/bf16/sm_90`. Its kernels are
compiled, and their machine code is read; `suites/gpu/table.txt` has a row for each distinct launch.
"""

import argparse

from rich.console import Console

from suites.gpu.compile import CARDS, compile_kernels
from suites.gpu.lower import captured_kernels, gpu_kernel, traffic_ratios
from suites.gpu.programs import DTYPES, deep_models, models, products, programs
from suites.gpu.table import Table, faults, show_worst
from suites.gpu.traffic import traffic_faults
from suites.harness import Result, add_worker_options, run_in_workers
from tofuse.ir.tile import GpuTarget

COUNTED_ON = "sm_90"  # where the kernels of models are compiled, or counted


def list_cases() -> list[str]:
    in_each_dtype = [f"{name}/{dtype}" for name in programs() | products() for dtype in DTYPES]
    found = [f"{name}/sm_{capability}" for capability in CARDS for name in in_each_dtype]
    counted = [f"{name}/{dtype}/{COUNTED_ON}" for name in deep_models() for dtype in DTYPES]
    return [*found, *counted, *(f"{name}/f32/{COUNTED_ON}" for name in models())]


def run_case(case: str) -> Result:
    """Compile the kernels of a case, and read their machine code; of deep models, count them."""
    name, dtype, architecture = case.split("/")
    capability = int(architecture.removeprefix("sm_"))
    make = (programs() | products() | models() | deep_models())[name]
    captured = captured_kernels(lambda: make(DTYPES[dtype]), name in products())
    target = GpuTarget(CARDS[capability].multiprocessors, capability)
    kernels = [gpu_kernel(kernel, target) for kernel in captured]
    compiled = [] if name in deep_models() else kernels
    rows = compile_kernels(f"{name}/{dtype}", compiled, capability)
    texts = len({k.text for k in kernels})
    ratios: list[float] = []
    if architecture == COUNTED_ON:
        ratios = traffic_ratios(lambda: make(DTYPES[dtype]), name in products())
    data: dict[str, str | int | float | list[str]] = {
        "keys": list(rows),
        "rows": list(map(str, rows.values())),
        "kernels": len(kernels),
        "texts": texts,
        "traffic": max(ratios, default=1.0),
    }
    return Result(case, "ok", data=data)


def _traffic_faults(result: Result) -> list[str]:
    ratio = result.data["traffic"]
    assert isinstance(ratio, float)
    return traffic_faults(result.case, ratio)


def main() -> int:
    """Check all kernels against the table; or rewrite the table, if all is well otherwise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the cases whose name contains this text")
    parser.add_argument("--accept", action="store_true", help="rewrite the rows of these cases")
    add_worker_options(parser, timeout=900.0)
    parser.set_defaults(jobs=2)
    arguments = parser.parse_args()
    known = list_cases()
    cases = [case for case in known if arguments.only in case]
    ran = run_in_workers("suites.gpu_check", cases, arguments, "gpu-check")
    results = sorted(ran, key=lambda result: known.index(result.case))
    failed = [result for result in results if result.failed]
    table = Table.of_results(results)
    stored = Table.read()
    console = Console()
    show_worst(table, console)
    found = faults(table, stored, partial=len(cases) < len(known) or bool(failed))
    found += [fault for r in results if not r.failed for fault in _traffic_faults(r)]
    if arguments.accept:
        stored.updated(table, {r.case for r in results if not r.failed}).write()
        found = faults(table, Table.read(), partial=len(cases) < len(known))
        found += [fault for r in results if not r.failed for fault in _traffic_faults(r)]
    for fault in found:
        console.print(fault, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(table.rows)} launches, {len(found)} faults, {len(failed)} failed cases")
    return int(bool(found or failed))


if __name__ == "__main__":
    raise SystemExit(main())
