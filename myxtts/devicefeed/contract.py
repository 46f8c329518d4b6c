"""What a batch is: the names, types and shapes of its fields, and the function that makes it.

A batch is a dictionary of tensors. Fields of int32 stay in host memory, where TensorFlow's
functions take and return them. Dimensions with the same name are equal within a batch. A dimension
that is known only when a run starts is a function.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tensorflow as tf

# By the names of the fields. Before producing, those in host memory are NumPy arrays, which
# TensorFlow's functions take like tensors.
Batch = dict[str, tf.Tensor]


class Field(NamedTuple):
    dtype: str
    dims: tuple[str | int | Callable[[], int], ...]

    @property
    def shape(self) -> list[int | None]:
        """Static shape, in which named dimensions are unknown."""
        return self.sized({})

    def sized(self, sizes: dict[str, Any]) -> list[Any]:
        """Return the shape, given the sizes of named dimensions; None for those without one."""
        known: dict[Any, Any] = {d: sizes.get(d) for d in self.dims if isinstance(d, str)}
        known |= {dim: dim() for dim in self.dims if callable(dim)}
        return [known.get(dim, dim) for dim in self.dims]

    @property
    def on_host(self) -> bool:
        """Whether the field is in host memory: a function would copy an int32 back from a GPU."""
        return self.dtype == "int32"


def tensor_specs(fields: dict[str, Field]) -> dict[str, tf.TensorSpec]:
    """Return the signature of a function that is traced once for all batches of a contract."""
    return {name: tf.TensorSpec(of.shape, of.dtype, name=name) for name, of in fields.items()}


def check_batch(batch: dict, fields: dict[str, Field], stage: str) -> None:
    """Raise TypeError if a batch has other types or static shapes after a stage: a defect."""
    faults = [f"{name} is missing" for name in fields.keys() - batch.keys()]
    faults += [f"{name} is unknown" for name in batch.keys() - fields.keys()]
    sizes: dict[str, int] = {}
    for name in fields.keys() & batch.keys():
        value, field = batch[name], fields[name]
        dtype = getattr(value.dtype, "name", str(value.dtype))
        if dtype != field.dtype:
            faults.append(f"{name} is {dtype}, not {field.dtype}")
        if len(value.shape) != len(field.dims):
            faults.append(f"{name} has shape {tuple(value.shape)}, not {field.dims}")
            continue
        for dim, fixed, size in zip(field.dims, field.shape, value.shape, strict=True):
            known = sizes.setdefault(dim, size) if isinstance(dim, str) else fixed
            if size is not None and known is not None and size != known:
                faults.append(f"{name} has {size} {dim}, not {known}")
    if faults:
        raise TypeError(f"batch after {stage}: {'; '.join(sorted(faults))}")


# Always the same network for a device: a traced function does not keep its variables alive.
LoadFrozen = Callable[[str], Any]
"""Returns a frozen network on a device."""


@dataclass(frozen=True)
class FeatureExtractor:
    """The contracts of a task's batches, and the TensorFlow function between them.

    `produce` has the frozen network as second argument, if there is one; it decides the named
    dimensions `sizes`, and lengthens the longest utterances by up to `max_stretch`.
    """

    inputs: dict[str, Field]
    features: dict[str, Field]
    produce: Callable[..., dict]
    sizes: Mapping[str, int] = field(default_factory=dict)
    max_stretch: float = 1.0
    load_frozen: LoadFrozen | None = None

    def produce_on(self, device: str) -> Callable[[dict], dict]:
        """Return `produce` as a function of a batch alone, with its frozen network on a device."""
        if self.load_frozen is None:
            return self.produce
        network = self.load_frozen(device)
        return lambda waves: self.produce(waves, network)
