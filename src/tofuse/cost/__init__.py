"""What work costs on a machine, and every number that steers a decision."""
