"""The judge: a kernel run plainly, for comparison."""
