"""Triton kernels for NVIDIA GPUs: text out of tiles, machine code out of text."""
