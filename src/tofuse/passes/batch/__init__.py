"""Batching of isomorphic branches: matching, rewriting, and remarks on branches not batched."""
