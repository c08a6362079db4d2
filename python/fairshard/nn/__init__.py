"""Wrappers of modules."""
