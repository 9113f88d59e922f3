"""Replace the unrolled steps of a loop by one step over all of them."""
