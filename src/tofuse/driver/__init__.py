"""The compiler: its stages in order, and what each region becomes."""
