"""The compiler driver: all stages in order, from a captured program to a callable."""
