"""The closed set of ops: rows, shape rules, reference meanings."""
