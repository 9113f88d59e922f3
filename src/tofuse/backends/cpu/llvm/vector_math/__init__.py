"""Vector math: elementary functions as IR text that is inlined, or as calls of a vector library."""
