"""Launches of CPU kernels, and the pool of their memory."""
