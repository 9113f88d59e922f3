"""Time the gradients and print the worst ratios to eager. Run it with `--jobs 1`."""

from suites.gradients.table import SUITE, worst_cases
from suites.harness import parse_arguments, run_suite, summarize

if __name__ == "__main__":
    arguments = parse_arguments("Compare the time of functions and their gradients with eager's.")
    results = run_suite("suites.gradients.table", SUITE, arguments)
    print(summarize(results))
    print(worst_cases(results))
    raise SystemExit(any(result.failed for result in results.values()))
