"""From a torch program to a Graph."""
