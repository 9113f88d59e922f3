"""Passes before autograd: each takes Dynamo's program, returns it and notes for the report."""
