"""Decode quantised weights as they are read."""
