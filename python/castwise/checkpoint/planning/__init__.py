"""Plan checkpoints whose tensors are derived from those of others: decoded, encoded, transcoded.

Each stage (`decode`, `encode`, `transcode`) reads components as `SourceComponent` and makes a
frozen `Derived` of each, which has the tensors with the jobs that make them, and what states how
they are stored. A `DerivedReader` then stands for each shard that changes, and a
`DerivedCheckpoint` for all of them, which a request writes.
"""
