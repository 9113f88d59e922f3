"""Properties of FX graphs and their nodes: sizes, dtypes, devices, source locations, memory."""
