"""The CPU: loop nests, LLVM IR, launches with threads."""
