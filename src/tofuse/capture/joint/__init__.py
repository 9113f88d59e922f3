"""Passes over the joint graph, and its partition into forward and backward."""
