"""GGUF, which llama.cpp reads, over the package gguf: its names, its writer, its vocabularies.

Castwise has what that lacks, as data. Headers are read by castwise itself: gguf's reader maps a
whole file of this machine, believes its counts, and neither joins files nor decodes in slabs.
"""
