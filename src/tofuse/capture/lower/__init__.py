"""The lowering of FX graphs of ATen calls to Graphs."""
