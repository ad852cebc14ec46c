"""Quantized arrays: their parts as stored, made and decoded."""
