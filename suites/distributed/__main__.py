"""Run the table of distributed training and write docs/distributed.md.

Run it with `--jobs 1`: it measures.
"""

from suites.distributed.table import PAGE, SUITE, page
from suites.harness import run_and_write_page

if __name__ == "__main__":
    run_and_write_page(
        "suites.distributed.table", SUITE, "Train on several ranks, compiled and not.", PAGE, page
    )
