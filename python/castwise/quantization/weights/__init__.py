"""The quantized weights of a checkpoint: found, judged, and decoded slab by slab."""
