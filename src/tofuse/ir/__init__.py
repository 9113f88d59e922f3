"""Intermediate representations: types, graph, kernel, nest, tile program, plan."""
