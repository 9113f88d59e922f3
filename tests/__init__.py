"""The tests of tofuse."""
