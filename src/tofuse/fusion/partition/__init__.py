"""Partition a graph into regions: legality, profitability, memory limit."""
