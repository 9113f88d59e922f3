"""What the suite over torch's operator database is made of: calls, programs, comparison."""
