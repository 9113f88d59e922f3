"""Intermediate representations: types, graph, region, kernel, nest, tile program, plan."""
