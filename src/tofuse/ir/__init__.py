"""The nouns: types, graph, kernel, loops, plan; how each prints, parses and verifies."""
