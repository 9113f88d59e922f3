"""Code that depends on private names of torch."""
