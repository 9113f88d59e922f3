"""One rule for each ATen operator that becomes ops of the graph."""
