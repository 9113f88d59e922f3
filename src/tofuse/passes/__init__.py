"""Graph-to-graph passes, one per file, each named as its function."""
