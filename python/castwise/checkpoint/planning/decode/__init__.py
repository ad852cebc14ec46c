"""Decode quantized weights as they are read."""
