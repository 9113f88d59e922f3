"""Random PyTorch programs, compared with eager, with float64, and under every option.

`python -m suites.fuzz --seconds 600` runs new programs; `--seed N` runs and prints one.
"""
