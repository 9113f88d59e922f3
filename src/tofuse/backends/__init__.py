"""Backends: LLVM, Triton, PyTorch's own operators, and the reference interpreter."""
