"""Quantize weights as they are read."""
