"""Plan checkpoints whose tensors are derived from those of others."""
