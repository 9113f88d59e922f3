"""The pass that rewrites complex arithmetic to real arithmetic."""
