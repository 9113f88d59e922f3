"""The lowering rules, one per ATen operator."""
