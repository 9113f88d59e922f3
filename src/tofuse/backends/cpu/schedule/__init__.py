"""Kernel to schedule and loop nest."""
