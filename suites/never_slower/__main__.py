"""Measure the programs and print the worst ratios to eager. Run it with `--jobs 1`."""

from suites.harness import parse_arguments, run_suite, summarize
from suites.never_slower.table import SUITE, worst_cases

if __name__ == "__main__":
    arguments = parse_arguments("Compare time and memory of many programs with eager's.")
    results = run_suite("suites.never_slower.table", SUITE, arguments)
    print(summarize(results))
    print(worst_cases(results))
    raise SystemExit(any(result.status != "ok" for result in results.values()))
