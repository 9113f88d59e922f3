"""Executing a plan: memory, threads, launches."""
