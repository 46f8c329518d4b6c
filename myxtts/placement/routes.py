"""Routes: which device makes batches and which device trains on them. No TensorFlow, no I/O.

A route is a pair (data device → model device), where several data devices may take turns. A
placement is a tuple of routes, one for each replica of the model. The same code runs all
placements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from myxtts.config.flags import marked
from myxtts.config.schema import NAMES_GPUS, PlacementConfig, ThreadCount, flag_of
from myxtts.errors import PlacementError

DEFAULT_DATA_MEMORY_MIB = 8192
DEFAULT_MODEL_MEMORY_MIB = 16384


@dataclass(frozen=True)
class Route:
    """Devices, such as `/GPU:0`, that make batches and train on them.

    Attributes:
        data: makes batches; the first of several devices that make them in turn.
        model: trains on them.
        further_data: the others of these devices, in the order of their turns.
    """

    data: str
    model: str
    further_data: tuple[str, ...] = ()

    @property
    def data_devices(self) -> tuple[str, ...]:
        """All devices that make batches, in the order of their turns."""
        return self.data, *self.further_data

    @property
    def is_between_devices(self) -> bool:
        """Whether batches travel from one device to another."""
        return any(device != self.model for device in self.data_devices)


@dataclass(frozen=True)
class LogicalDevice:
    """A TensorFlow device, and the hardware behind it."""

    name: str  # /GPU:0, /CPU:1
    # Index of the physical or simulated GPU; None is the CPU.
    physical: int | None
    # Fixed limit; None grows as needed.
    memory_mib: int | None = None


@dataclass(frozen=True)
class Placement:
    """Devices and thread pools to configure before TensorFlow starts, and the routes.

    Attributes:
        name: such as `single`, `dual`, `dual, 2 producers, 3 replicas` or `replicated`.
        observer: device that validates and writes samples during training; empty if the first model
            device does, while training pauses.
    """

    name: str
    routes: tuple[Route, ...]
    devices: tuple[LogicalDevice, ...]
    simulated: bool
    observer: str = ""
    intra_op_threads: ThreadCount = "auto"
    inter_op_threads: ThreadCount = "auto"

    @property
    def on_gpu(self) -> bool:
        return self.devices[0].name.startswith("/GPU")


def single_route(placement: Placement, purpose: str) -> Route:
    """Return the route of a placement with one replica.

    Raises:
        PlacementError: there are several routes.
    """
    if len(placement.routes) > 1:
        raise PlacementError(
            f"{purpose} of {len(placement.routes)} replicas ({placement.name}) was requested, but"
            " only one replica is supported. Give a single GPU with --model-gpus; `myxtts plan`"
            " compares placements with several."
        )
    return placement.routes[0]


def plan_routes(settings: PlacementConfig, gpu_count: int) -> Placement:
    """Turn settings into routes.

    TensorFlow numbers the visible GPUs by physical index, in whatever order they are requested.
    This function alone maps physical to logical devices.

    Args:
        gpu_count: physical GPUs that TensorFlow sees; ignored if GPUs are simulated.

    Raises:
        PlacementError: the settings contradict each other, or request GPUs that do not exist.
    """
    _check_contradictions(settings)
    count = settings.simulate_gpus or gpu_count
    threads = settings.intra_op_threads, settings.inter_op_threads
    model_gpus = settings.model_gpus or _optional(settings.model_gpu)
    if not model_gpus and count == 0:
        _check_limits_without_gpu(settings)
        cpu = LogicalDevice("/CPU:0", None)
        _check_gpus_exist(settings, {"observer": _observer_gpus(settings)}, count)
        return Placement("single", (Route(cpu.name, cpu.name),), (cpu,), False, "", *threads)
    model_gpus = model_gpus or (0,)
    data_gpus = named_data_gpus(settings)
    roles = {
        "data": data_gpus or model_gpus,
        "model": model_gpus,
        "observer": _observer_gpus(settings),
    }
    _check_gpus_exist(settings, roles, count)

    limit_of = _limits(settings)
    data_role = "model" if limit_of["data"] is None else "data"
    data_slots = [(gpu, data_role) for gpu in data_gpus]
    model_slots = [(gpu, "model") for gpu in model_gpus]
    slots = {*data_slots, *model_slots}
    # A GPU of two roles is one device. Without memory limits both roles have the same one.
    observer_slot = None
    for gpu in _observer_gpus(settings):
        observer_slot = (gpu, "data") if (gpu, "data") in slots else (gpu, "model")
        slots.add(observer_slot)
    # Unused GPUs as well, so that /CPU:2 is simulated GPU 2.
    if settings.simulate_gpus:
        slots |= {(gpu, "model") for gpu in set(range(count)).difference(data_gpus, model_gpus)}
    kind = "/CPU" if settings.simulate_gpus else "/GPU"
    name_of = {slot: f"{kind}:{i}" for i, slot in enumerate(sorted(slots))}
    routes = tuple(
        _route([name_of[slot] for slot in data_slots], name_of[slot]) for slot in model_slots
    )
    devices = tuple(
        LogicalDevice(name_of[slot], slot[0], limit_of[slot[1]]) for slot in sorted(slots)
    )
    named_observer = name_of[observer_slot] if observer_slot else ""
    observer = _observer(settings, routes, named_observer)
    return Placement(
        _name(routes), routes, devices, bool(settings.simulate_gpus), observer, *threads
    )


def _observer_gpus(settings: PlacementConfig) -> tuple[int, ...]:
    """Return the GPU that the settings name as the observer, if they name one."""
    return (settings.observer,) if isinstance(settings.observer, int) else ()


def _observer(settings: PlacementConfig, routes: Sequence[Route], named: str) -> str:
    """Return the observer's device; empty if it is the first model device.

    Args:
        named: device of the GPU that the settings name, if they name one.
    """
    data = routes[0].data
    devices = {"auto": data, "data": data, "model": "", "cpu": "/CPU:0"}
    # By default nothing observes on a device that trains.
    if any(data == route.model for route in routes):
        devices["auto"] = ""
    device = named or devices[str(settings.observer)]
    return "" if device == routes[0].model else device


def named_data_gpus(settings: PlacementConfig) -> tuple[int, ...]:
    """Return the GPUs that make all batches; empty where each replica makes its own."""
    return settings.data_gpus or _optional(settings.data_gpu)


def _optional(gpu: int | None) -> tuple[int, ...]:
    return () if gpu is None else (gpu,)


def named_gpus(settings: PlacementConfig) -> tuple[int, ...]:
    """Return all GPUs that the settings name: first those that make batches."""
    return *named_data_gpus(settings), *_optional(settings.model_gpu), *settings.model_gpus


def flags_of_gpus(settings: PlacementConfig) -> list[str]:
    """Return the flags by which the settings name GPUs."""
    given = (
        name
        for name in (*(setting.name for setting in marked(NAMES_GPUS)), "data_gpu_memory")
        if getattr(settings, name) not in (None, ())
    )
    return [flag_of(name) for name in given]


def _route(data: Sequence[str], model: str) -> Route:
    """Return the route from these data devices, or from the model device if there is none."""
    first, *further = data or (model,)
    return Route(first, model, tuple(further))


def hidden_gpus_warning(simulated: int, found: str, to_do: str) -> str:
    """Return the warning that simulated GPUs hide real ones.

    Args:
        found: who sees how many GPUs.
        to_do: flags or command that use them.
    """
    return (
        f"WARNING        --simulate-gpus {simulated} trains on the CPU, but {found}. To train"
        f" there: {to_do}"
    )


def _limits(settings: PlacementConfig) -> dict[str, int | None]:
    """Return each role's memory limit in MiB; without limits one GPU is one device."""
    data, model = settings.data_gpu_memory, settings.model_gpu_memory
    if not settings.enable_memory_isolation and data is None and model is None:
        return {"data": None, "model": None}
    return {"data": data or DEFAULT_DATA_MEMORY_MIB, "model": model or DEFAULT_MODEL_MEMORY_MIB}


def _name(routes: tuple[Route, ...]) -> str:
    if not any(route.is_between_devices for route in routes):
        return "single" if len(routes) == 1 else "replicated"
    name = "dual"
    if routes[0].further_data:
        name += f", {len(routes[0].data_devices)} producers"
    if len(routes) > 1:
        name += f", {len(routes)} replicas"
    return name


def _check_contradictions(settings: PlacementConfig) -> None:
    data = named_data_gpus(settings)
    model = settings.model_gpu
    models = settings.model_gpus
    if settings.placement == "auto":
        raise PlacementError(
            "--placement auto was given, but only `myxtts train` supports it, which measures before"
            " it trains. Name the devices with --data-gpu and --model-gpu, or leave it out."
        )
    for role, one, several in (
        ("data", settings.data_gpu, settings.data_gpus),
        ("model", model, models),
    ):
        if one is not None and several:
            raise PlacementError(
                f"--{role}-gpu {one} and --{role}-gpus {_list(several)} were both given. Use one of"
                " the two."
            )
    if (not data) != (model is None) and not models:
        data_flag = "--data-gpus" if settings.data_gpus else "--data-gpu"
        given, missing = (
            (data_flag, "--model-gpu") if model is None else ("--model-gpu", "--data-gpu")
        )
        raise PlacementError(
            f"{given} was given without {missing}. Give both to make batches on one GPU and train"
            " on another (the same index twice for one GPU), or neither to train on GPU 0."
        )
    if len(set(models)) < len(models):
        raise PlacementError(
            f"--model-gpus {_list(models)} names a GPU twice. Each replica needs its own GPU."
        )
    if len(set(data)) < len(data):
        raise PlacementError(
            f"--data-gpus {_list(data)} names a GPU twice. Each producer needs its own GPU."
        )
    if settings.simulate_gpus and settings.observer == "cpu":
        raise PlacementError(
            f"--observer cpu was given with --simulate-gpus {settings.simulate_gpus}, whose GPUs"
            " are parts of the CPU. Give the index of a simulated GPU, such as --observer 0."
        )
    if settings.data_gpu_memory is not None and not data:
        raise PlacementError(
            "--data-gpu-memory was given without --data-gpu. Name the GPU that makes the batches."
        )


def _check_gpus_exist(
    settings: PlacementConfig, roles: Mapping[str, Sequence[int]], count: int
) -> None:
    for role, gpus in roles.items():
        for gpu in gpus:
            if gpu >= count:
                raise PlacementError(
                    f"{role} GPU {gpu} was requested, but {_existing_gpus(settings, count)}."
                    f" {_advice(settings)}"
                )


def _existing_gpus(settings: PlacementConfig, count: int) -> str:
    if settings.simulate_gpus:
        gpus = f"GPUs 0 to {count - 1}" if count > 1 else "only GPU 0"
        return f"--simulate-gpus {count} makes {gpus}"
    return {0: "TensorFlow sees no GPU", 1: "TensorFlow sees 1 GPU (index 0)"}.get(
        count, f"TensorFlow sees {count} GPUs (0 to {count - 1})"
    )


def _advice(settings: PlacementConfig) -> str:
    return (
        "A run without --data-gpu, --data-gpus, --model-gpu and --model-gpus (data_gpu, data_gpus,"
        " model_gpu and model_gpus in a file of --config) trains on one device; --simulate-gpus"
        f" {max(*named_gpus(settings), *_observer_gpus(settings), 1) + 1} tries the pipeline on the"
        " CPU."
    )


def _check_limits_without_gpu(settings: PlacementConfig) -> None:
    if settings.enable_memory_isolation or settings.model_gpu_memory is not None:
        raise PlacementError(
            "a memory limit was set, but TensorFlow sees no GPU, and the CPU has no such limit."
            " Leave out --enable-memory-isolation and --model-gpu-memory (or give"
            " --model-gpu-memory null, if the run's config.yaml has it), or make a GPU visible."
        )


def _list(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))
