"""How producers name, store and declare quantised weights."""
