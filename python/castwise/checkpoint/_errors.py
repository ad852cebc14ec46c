"""The one exception that the checkpoint package raises for what it was given."""


class CheckpointError(ValueError):
    """A checkpoint, or a map for one, that cannot be used as asked.

    The message names the file, the tensor or key at fault, and what to do about it. The destination
    is as it was, unless the message says that it was written.
    """
