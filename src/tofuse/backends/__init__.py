"""From loops to machine code, and PyTorch's own operators."""
