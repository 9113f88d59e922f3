"""The cache on disk: programs, machine code, machine costs, tuning choices."""
