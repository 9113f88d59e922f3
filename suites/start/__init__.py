"""The first steps of new processes: eager, Inductor and tofuse, side by side."""
