"""Who loads a checkpoint: the rules of consumers, each written from its own source.

A consumer builds the modules of a model, quantized or not, by what is stated; the check compares
that with the tensors of the file.
"""
