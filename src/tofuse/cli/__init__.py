"""The command line: `tofuse explain`, `run`, `bench`, `doctor` and `cache`."""
