"""Direct ways in, beside torch programs."""
