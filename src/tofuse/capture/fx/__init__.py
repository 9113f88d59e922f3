"""What the nodes of an FX graph say: sizes, dtypes, devices, source locations, memory."""
