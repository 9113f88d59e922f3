"""Measure language models and write docs/language-models.md. Run it with `--jobs 1`."""

from suites.harness import run_and_write_page
from suites.language_models.table import PAGE, SUITE, page

if __name__ == "__main__":
    description = "Measure language models on a CPU."
    run_and_write_page("suites.language_models.table", SUITE, description, PAGE, page)
