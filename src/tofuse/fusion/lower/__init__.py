"""Lower regions to kernels that index values by atomic axes."""
