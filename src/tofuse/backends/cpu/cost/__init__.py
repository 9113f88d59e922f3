"""What loop nests cost."""
