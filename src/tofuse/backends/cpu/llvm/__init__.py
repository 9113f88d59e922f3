"""CPU backend: LLVM IR text for a nest, compiled and linked in this process."""
