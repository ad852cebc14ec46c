"""Carry out a conversion: files, shards, parts and pieces, and what makes a run resumable."""
