"""Capture by Dynamo: the backend, its legality checks, guards and specializations."""
