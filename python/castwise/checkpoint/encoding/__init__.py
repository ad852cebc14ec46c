"""Quantise the weights of a checkpoint as a producer does, and state it as that producer would."""
