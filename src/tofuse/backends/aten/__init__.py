"""ATen backend: run regions and graphs by PyTorch's own operators."""
