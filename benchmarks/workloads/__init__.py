"""Workloads: programs with their inputs, and the speed that they must reach."""
