"""Which device makes batches and which trains on them. Pure: no TensorFlow, no I/O.

A route is a pair (data device → model device); a placement is a tuple of routes, one for each
replica of the model. All placements are run by the same code.
"""

from dataclasses import dataclass

from myxtts.errors import PlacementError

DATA_MEMORY_MIB = 8192
MODEL_MEMORY_MIB = 16384


@dataclass(frozen=True)
class Route:
    """Where a batch is made, and where it is trained on. Names such as `/GPU:0`."""

    data: str
    model: str


@dataclass(frozen=True)
class LogicalDevice:
    """A device as TensorFlow will name it, and what it is made of."""

    name: str  # /GPU:0, /CPU:1
    physical: int | None  # index of the GPU on the machine, or of the simulated GPU; None is the CPU itself
    memory_mib: int | None = None  # fixed limit; None lets it grow


@dataclass(frozen=True)
class Placement:
    """Devices to configure before TensorFlow starts, and the routes over them."""

    name: str  # single, dual or replicated
    routes: tuple[Route, ...]
    devices: tuple[LogicalDevice, ...]
    simulated: bool

    @property
    def on_gpu(self) -> bool:
        return self.devices[0].name.startswith("/GPU")


def only_route(placement: Placement, what: str) -> Route:
    """The route of what can be done for one replica alone.

    Raises:
        PlacementError: there are several.
    """
    if len(placement.routes) > 1:
        raise PlacementError(
            f"{what} of {len(placement.routes)} replicas ({placement.name}) was asked for, but it is of one. Give one "
            "GPU by --model-gpu; utilities/plan_placement.py compares placements with several."
        )
    return placement.routes[0]


def plan_routes(placement, gpu_count: int) -> Placement:
    """Turn what was asked for into routes.

    TensorFlow numbers the visible GPUs by physical index, whatever order they are asked for in,
    so the map from physical to logical devices is made here and nowhere else.

    Args:
        placement: the settings, as `config.schema.Placement` has them.
        gpu_count: physical GPUs that TensorFlow sees; not used where GPUs are simulated.

    Raises:
        PlacementError: the settings contradict each other, or ask for GPUs that are not there.
    """
    _check_contradictions(placement)
    found = placement.simulate_gpus or gpu_count
    model_gpus = placement.model_gpus or (() if placement.model_gpu is None else (placement.model_gpu,))
    if not model_gpus and found == 0:
        _check_limits_without_gpu(placement)
        return Placement("single", (Route("/CPU:0", "/CPU:0"),), (LogicalDevice("/CPU:0", None),), False)
    model_gpus = model_gpus or (0,)
    data_gpus = model_gpus if placement.data_gpu is None else (placement.data_gpu,) * len(model_gpus)
    _check_gpus_exist(placement, data_gpus, model_gpus, found)

    limit_of = _limits(placement)
    data_role = "model" if placement.data_gpu is None or limit_of["data"] is None else "data"
    data_slots = [(gpu, data_role) for gpu in data_gpus]
    model_slots = [(gpu, "model") for gpu in model_gpus]
    slots = {*data_slots, *model_slots}
    if placement.simulate_gpus:  # all of them are made: /CPU:2 is simulated GPU 2, as unused GPUs cost nothing here
        slots |= {(gpu, "model") for gpu in set(range(found)).difference(data_gpus, model_gpus)}
    slots = sorted(slots)
    kind = "/CPU" if placement.simulate_gpus else "/GPU"
    name_of = {slot: f"{kind}:{i}" for i, slot in enumerate(slots)}
    routes = tuple(Route(name_of[d], name_of[m]) for d, m in zip(data_slots, model_slots, strict=True))
    devices = tuple(LogicalDevice(name_of[slot], slot[0], limit_of[slot[1]]) for slot in slots)
    return Placement(_name(routes), routes, devices, bool(placement.simulate_gpus))


def _limits(placement) -> dict[str, int | None]:
    """Memory limit in MiB of each role; without limits a GPU that serves both is one device."""
    asked = (placement.data_gpu_memory, placement.model_gpu_memory)
    if not placement.enable_memory_isolation and asked == (None, None):
        return {"data": None, "model": None}
    return {"data": asked[0] or DATA_MEMORY_MIB, "model": asked[1] or MODEL_MEMORY_MIB}


def _name(routes: tuple[Route, ...]) -> str:
    if all(route.data == route.model for route in routes):
        return "single" if len(routes) == 1 else "replicated"
    return "dual" if len(routes) == 1 else f"dual, {len(routes)} replicas"


def _check_contradictions(placement) -> None:
    data, model, models = placement.data_gpu, placement.model_gpu, placement.model_gpus
    if placement.placement == "auto":
        raise PlacementError(
            "--placement auto was asked for, which train_main.py alone can do: it measures before it trains. "
            "Name a placement by --data-gpu and --model-gpu, or leave it out."
        )
    if model is not None and models:
        raise PlacementError(
            f"--model-gpu {model} and --model-gpus {_list(models)} were both given. Use one of the two."
        )
    if (data is None) != (model is None) and not models:
        given, missing = ("--data-gpu", "--model-gpu") if model is None else ("--model-gpu", "--data-gpu")
        raise PlacementError(
            f"{given} was given without {missing}. Give both to train on another GPU than the one that makes the "
            "batches (the same index twice for one GPU), or neither to train on GPU 0."
        )
    if len(set(models)) < len(models):
        raise PlacementError(f"--model-gpus {_list(models)} names a GPU twice. Each replica needs a GPU of its own.")
    if placement.data_gpu_memory is not None and data is None:
        raise PlacementError("--data-gpu-memory was given without --data-gpu. Name the GPU that makes the batches.")


def _check_gpus_exist(placement, data_gpus, model_gpus, found: int) -> None:
    for role, gpus in (("data", data_gpus), ("model", model_gpus)):
        for gpu in gpus:
            if gpu >= found:
                raise PlacementError(
                    f"{role} GPU {gpu} was asked for, but {_found(placement, found)}. {_advice(placement)}"
                )


def _found(placement, found: int) -> str:
    if placement.simulate_gpus:
        return (
            f"--simulate-gpus {found} makes GPUs 0 to {found - 1}"
            if found > 1
            else "--simulate-gpus 1 makes only GPU 0"
        )
    return {0: "TensorFlow sees no GPU", 1: "TensorFlow sees 1 GPU (index 0)"}.get(
        found, f"TensorFlow sees {found} GPUs (0 to {found - 1})"
    )


def _advice(placement) -> str:
    highest = max(
        (gpu for gpu in (placement.data_gpu, placement.model_gpu, *placement.model_gpus) if gpu is not None), default=0
    )
    return (
        "Leave out --data-gpu and --model-gpu to train on one device, "
        f"or try the pipeline with --simulate-gpus {max(highest + 1, 2)}."
    )


def _check_limits_without_gpu(placement) -> None:
    if placement.enable_memory_isolation or placement.model_gpu_memory is not None:
        raise PlacementError(
            "A memory limit was asked for, but TensorFlow sees no GPU, and the CPU has no such limit. "
            "Leave out --enable-memory-isolation and --model-gpu-memory, or make a GPU visible."
        )


def _list(numbers) -> str:
    return " ".join(map(str, numbers))
