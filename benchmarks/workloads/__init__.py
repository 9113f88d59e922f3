"""What is measured: programs, their inputs, and the bars they are held against."""
