"""A hundred programs that must not be slower than eager, nor hold more memory."""
