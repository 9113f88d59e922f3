"""Region to kernel: atomic axes, so that views inside a region vanish."""
