"""Partition graphs into regions, and lower regions to kernels."""
