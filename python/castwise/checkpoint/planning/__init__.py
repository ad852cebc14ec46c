"""Plan checkpoints whose tensors are derived from those of others: decoded, encoded, transcoded.

A function of each stage (`decode`, `encode`, `transcode`) reads a `SourceComponent` and returns
what it becomes: a frozen `Derived`, which has the tensors with the jobs that make them, and what
states how they are stored. A `DerivedReader` then stands for each shard, and a `DerivedCheckpoint`
for all of them, which a request writes.
"""
