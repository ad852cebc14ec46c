"""Files and object stores: what is read, what appears only when it is complete."""
