"""castwise inside other frameworks: Keras, PyTorch, JAX, TF 2. Each is imported when it is used."""
