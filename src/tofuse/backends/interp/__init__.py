"""The judge: kernels run slowly and plainly, to hold the other backends against."""
