"""Compare two checkpoints: their structure, their values, and what makes the second of the first.

`verify` and `diff` are the two questions asked of one walk over pairs of pieces.
"""
