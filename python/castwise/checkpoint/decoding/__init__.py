"""Find the quantised weights of a checkpoint, and read them as if they were plain."""
