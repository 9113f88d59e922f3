"""Capture as a pure function: guards on the arguments alone."""
