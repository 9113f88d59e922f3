"""Time first steps of new processes, print and write docs/start.md. Run it with `--jobs 1`."""

from suites.harness import SECONDS_OF_MEASURING_CASE, parse_arguments, run_suite, summarize
from suites.start.table import PAGE, SUITE, page

if __name__ == "__main__":
    arguments = parse_arguments("Time the first steps of processes.", SECONDS_OF_MEASURING_CASE)
    results = run_suite("suites.start.table", SUITE, arguments)
    PAGE.write_text(page(results))
    print(page(results))
    print(summarize(results))
    raise SystemExit(any(result.failed for result in results.values()))
