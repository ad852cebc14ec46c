"""How producers name, store and declare quantised weights, with a module for each."""
