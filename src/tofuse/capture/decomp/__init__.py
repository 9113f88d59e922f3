"""Decompositions of composite ATen operators into operators that can be fused."""
