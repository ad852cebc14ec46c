"""Quantise weights as they are read."""
