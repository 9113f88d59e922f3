"""Compute large products in chunks of rows."""
