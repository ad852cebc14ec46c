"""How to write an adapter, by which castwise casts another library's arrays.

`castwise.cast` and `castwise.cast_tree` find an adapter by the top-level module of an object's
class, and import it when they get the first such object; programs with numpy arrays only import
nothing. A package offers an adapter as an entry point, whose name is that module:

```toml
[project.entry-points."castwise.adapters"]
cupy = "castwise_cupy:CupyAdapter"
```

`castwise.adapters.registry.register` does the same for one process, also for the classes that a
function accepts. `castwise.adapters.check` runs every promise on a sample, and names methods that
break one. This is a complete adapter,
for a library whose arrays are on a device, and are copied by `asnumpy` and `asarray`:

```python
import castwise
import cupy
from castwise.adapters.protocol import Adapter

class CupyAdapter(Adapter):
    def is_array(self, value):
        return isinstance(value, cupy.ndarray)

    def dtype_of(self, array):
        return array.dtype

    def to_host(self, array):
        return cupy.asnumpy(array)

    def from_host(self, array, like):
        with like.device:
            return cupy.asarray(array)

    def cast(self, array, dtype=None, **options):
        if options or dtype is None:
            return super().cast(array, dtype, **options)  # on the host, by castwise
        return array.astype(castwise.finfo(dtype).dtype)  # on the device
```
"""

from castwise.arrays.adapter_registry import Adapter

__all__ = ["Adapter"]
