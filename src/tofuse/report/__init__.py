"""What was decided, as data and as text."""
