"""Concats: elimination, the cost of fusing their operands, and guards in kernels."""
