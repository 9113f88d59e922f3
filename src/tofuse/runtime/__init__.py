"""Execute a plan: memory, threads and launches."""
