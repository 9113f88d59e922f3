"""Run the table of distributed training and write docs/distributed.md.

Run it with `--jobs 1`: it measures.
"""

from suites import harness
from suites.distributed.table import PAGE, SUITE, page


def main() -> None:
    """Exit with 1 if a row fails."""
    arguments = harness.parse_arguments("Train on several ranks, compiled and not.", 600.0)
    results = harness.run_suite("suites.distributed.table", SUITE, arguments)
    print(harness.summarize(results))
    PAGE.write_text(page(results))
    raise SystemExit(any(result.failed for result in results.values()))


if __name__ == "__main__":
    main()
