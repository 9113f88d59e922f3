"""Rewrites of Dynamo's program before autograd sees it."""
