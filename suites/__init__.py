"""Long correctness suites: torch's operator database, public models, random programs.

`make test` runs a small part of each; `make opinfo`, `make models` and `make fuzz` run all.
"""
