"""Cost models and the machine constants they use."""
