"""The reference interpreter, which defines what a kernel computes and tests other backends."""
