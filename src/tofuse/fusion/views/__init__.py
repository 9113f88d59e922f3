"""Graph rewrites for views that kernels cannot read as they are."""
