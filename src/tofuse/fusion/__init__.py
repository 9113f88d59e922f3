"""Which ops become one kernel, and that kernel in index form."""
