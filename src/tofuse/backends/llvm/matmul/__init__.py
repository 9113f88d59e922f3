"""Matrix products: LLVM IR of the loops over blocks, the packing, and the kernel in registers.

The way of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008):
a panel of B and a block of A are copied into the order in which the kernel reads them, so that it
meets one line of memory after the other whatever the operands' strides.
"""
