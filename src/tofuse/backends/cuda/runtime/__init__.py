"""Launches on a GPU, and replays of recorded ones."""
