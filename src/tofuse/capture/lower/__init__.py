"""From an FX graph of ATen calls to a Graph."""
