"""The seed programs: what they compute, whether it is right, what it costs."""
