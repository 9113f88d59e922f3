"""NVIDIA's GPUs: tile programs, Triton, launches on a stream."""
