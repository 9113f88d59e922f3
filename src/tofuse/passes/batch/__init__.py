"""Batching of isomorphic branches: match them, find runs of them, say why others stay apart."""
