"""Capture by tracing: a pure function, with guards on its arguments alone."""
