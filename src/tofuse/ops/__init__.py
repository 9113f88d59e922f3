"""The closed set of ops: table, type rules, reference implementation."""
