"""What is kept on disk between processes: programs, machine code, measured choices."""
