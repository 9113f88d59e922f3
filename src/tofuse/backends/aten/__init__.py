"""Regions run by PyTorch's own operators."""
