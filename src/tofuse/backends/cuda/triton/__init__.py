"""GPU backend: Triton text for a tile program, compiled to machine code for NVIDIA GPUs."""
