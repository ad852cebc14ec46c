"""What castwise knows of models: what each parameter of an architecture is."""
