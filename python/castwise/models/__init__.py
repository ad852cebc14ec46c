"""What castwise knows of models: the role of each tensor, its axes, and what engines join."""
