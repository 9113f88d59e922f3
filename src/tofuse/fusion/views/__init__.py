"""Views that need a tensor of their own."""
