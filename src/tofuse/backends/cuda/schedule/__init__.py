"""Kernel to tile program."""
