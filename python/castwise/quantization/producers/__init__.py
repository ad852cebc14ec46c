"""How producers name, store and declare quantized weights, with a module for each."""
