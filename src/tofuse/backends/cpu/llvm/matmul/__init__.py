"""Matrix products: LLVM IR of the blocked loops, the packing, and the microkernel.

Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008): a panel of B and
a block of A are packed in the order in which the microkernel reads them, so that it reads
consecutive cache lines whatever the operands' strides.
"""
