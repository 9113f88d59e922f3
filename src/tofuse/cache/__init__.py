"""Compiled programs and guarded code on disk, each under a key that says when it may be used."""
