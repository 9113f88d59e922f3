"""Concats whose producers write into slices of the result, or that a kernel computes."""
