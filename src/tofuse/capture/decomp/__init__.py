"""Decompositions: composite ATen operators taken apart into what can be fused."""
