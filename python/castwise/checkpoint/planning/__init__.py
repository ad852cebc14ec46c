"""Plan checkpoints whose tensors are derived from those of others: decoded, encoded, transcoded.

A stage (`decode`, `encode`, `transcode`) makes a `ComponentPlan` for each component: it says what
is derived of which stored tensor, and what states that. The plan itself reads what is stated of the
source, loops over shards and refuses two tensors of a name. A `DerivedReader` then stands for each
shard, and a `DerivedCheckpoint` for all of them, which a request writes.
"""
