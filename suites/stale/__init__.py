"""Programs of which one thing changes between two processes, against eager."""
