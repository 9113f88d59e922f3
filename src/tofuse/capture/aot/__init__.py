"""Between AOTAutograd and a compiled program: hand-off, runtime, double backward."""
