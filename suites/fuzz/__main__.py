"""Run random programs for some time, or one of them; print what fails, made small."""

import argparse
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable

from suites.fuzz.case import parse_case, seed_variants, show_case
from suites.fuzz.generate import generate
from suites.fuzz.program import Program
from suites.fuzz.run import Variant
from suites.fuzz.shrink import shrink
from suites.fuzz.standalone import standalone
from suites.harness import Result, Worker, add_worker_options, journal, run_in_workers

MODULE = "suites.fuzz.case"
SHRINK_SECONDS = 120.0  # for one failure


def main() -> int:
    """Return 1 if a program fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_worker_options(parser)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to start programs")
    parser.add_argument("--seed", type=int, help="run and print this program alone")
    parser.add_argument("--first", type=int, help="the first seed; default: by the clock")
    parser.add_argument("--variants", type=int, default=2, help="variants of each program")
    parser.add_argument(
        "--canaries", choices=("none", "some", "end", "start"), default="some", help="guard pages"
    )
    parser.add_argument("--keep", action="store_true", help="do not shrink what fails")
    arguments = parser.parse_args()
    os.environ["FUZZ_VARIANTS"] = str(arguments.variants)
    os.environ["FUZZ_CANARIES"] = "" if arguments.canaries == "none" else arguments.canaries
    if arguments.seed is not None:
        return run_seed(arguments.seed, arguments)
    begin = time.monotonic()
    first = int(time.time()) * 1000 if arguments.first is None else arguments.first
    seeds = map(str, itertools.count(first))
    stream = run_in_workers(MODULE, seeds, arguments, "fuzz", arguments.seconds)
    results = list(journal("fuzz", stream))
    took = time.monotonic() - begin
    print(f"{len(results)} programs, {len(results) / took:.2f} a second, first seed {first}")
    print(", ".join(f"{n} {status}" for status, n in Counter(r.status for r in results).items()))
    return report(results, arguments)


def run_seed(seed: int, arguments: argparse.Namespace) -> int:
    """Run one program; print it, and what fails made small."""
    worker = Worker(MODULE)
    result = worker.run(str(seed), arguments.timeout)
    worker.stop()
    print(standalone(generate(seed), Variant(), result.detail or result.status))
    return report([result], arguments)


def report(results: Iterable[Result], arguments: argparse.Namespace) -> int:
    """Print one small program for each kind of failure; return 1 if there is one."""
    kinds: dict[str, list[Result]] = {}
    for result in results:
        if result.failed or result.status == "torch":
            kind = f"{result.status} {result.data.get('kind', result.detail)}"
            kinds.setdefault(kind, []).append(result)
    for kind, found in sorted(kinds.items()):
        print(f"\n## {kind}: {len(found)} programs, seeds {[r.case for r in found[:20]]}")
        if found[0].failed and not arguments.keep:
            print(smallest(found[0], arguments.timeout), flush=True)
    return int(any(r.failed for found in kinds.values() for r in found))


def smallest(result: Result, timeout: float) -> str:
    """Return the source of a small program that fails as this one did."""
    worker = Worker(MODULE)
    case = str(result.data.get("case") or crashing_case(result.case, worker, timeout))
    if not case:
        return f"# seed {result.case} fails only together with other programs"
    details = [result.detail]

    def fails(program: Program, variant: Variant) -> bool:
        again = worker.run(show_case(program, variant), timeout)
        same = again.status == result.status
        same &= again.data.get("kind") == result.data.get("kind")
        if same:
            details.append(again.detail)
        return same

    program, (variant,) = parse_case(case)
    program, variant = shrink((program, variant), fails, SHRINK_SECONDS)
    worker.stop()
    return standalone(program, variant, details[-1])


def crashing_case(seed: str, worker: Worker, timeout: float) -> str:
    """Return the case of a seed that ends the worker, or ""."""
    program = generate(int(seed))
    for variant in seed_variants(int(seed)):
        case = show_case(program, variant)
        if worker.run(case, timeout).status == "crashed":
            return case
    return ""


if __name__ == "__main__":
    sys.exit(main())
