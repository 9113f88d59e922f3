"""Benchmarks: seed programs and workloads, their correctness, and their cost."""
