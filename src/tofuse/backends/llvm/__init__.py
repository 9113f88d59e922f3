"""CPU code through LLVM, in this process."""
