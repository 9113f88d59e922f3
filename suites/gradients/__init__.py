"""Gradients of single functions, timed against eager's."""
