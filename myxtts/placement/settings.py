"""Routes: which device makes batches and which device trains on them. No TensorFlow, no I/O.

A placement is a tuple of routes, one for each replica of the model. The same code runs all
placements.
"""

from collections.abc import Sequence

from myxtts.config.flags import marked
from myxtts.config.schema import NAMES_GPUS, PlacementConfig, flag_of
from myxtts.devicefeed.errors import PlacementError
from myxtts.devicefeed.routes import LogicalDevice, Placement, Route

DEFAULT_DATA_MEMORY_MIB = 8192
DEFAULT_MODEL_MEMORY_MIB = 16384


def first_own_gpu(highest: int, gpu_count: int, rank: int, workers: int) -> int:
    """Return the GPU that is number 0 for a worker, whose settings name no higher one.

    The workers of a host divide the GPUs that they see: of four, worker 1 of two has GPUs 2 and 3.
    A worker that names GPUs beyond its share, or for which none is left, counts all that it sees,
    since something else may have given them to it alone; the rendezvous rejects a GPU of two.

    Args:
        rank, workers: the worker's rank among the workers on its host, and how many these are.
    """
    share = max(1, gpu_count // workers)
    if highest >= share or (rank + 1) * share > gpu_count:
        return 0
    return rank * share


# Settings name GPUs by role. First they are checked and shifted to the GPUs of this worker. Each
# role on a GPU becomes a slot; equal slots are one device, so a GPU of two roles is one unless
# memory limits divide it. Sorted slots get TensorFlow's logical numbers. With these names, routes
# are made: one for each model GPU, each with all data devices, or with itself if there are none.
# The observer gets a name last, empty if it would be the first model device.
def plan_routes(
    settings: PlacementConfig, gpu_count: int, rank: int = 0, workers: int = 1
) -> Placement:
    """Turn settings into routes.

    TensorFlow numbers the visible GPUs by physical index, in whatever order they are requested.
    This function alone maps physical to logical devices. Raises PlacementError if the settings
    contradict each other, or name GPUs that do not exist.

    Args:
        gpu_count: physical GPUs that TensorFlow sees; ignored if GPUs are simulated.
        rank, workers: as in `first_own_gpu`.
    """
    _check_contradictions(settings)
    count = settings.simulate_gpus or gpu_count
    named = _gpus_by_role(settings)
    _check_gpus_exist(settings, count, named)
    intra, inter = settings.intra_op_threads, settings.inter_op_threads
    if count == 0:
        cpu = LogicalDevice("/CPU:0", None)
        return Placement("single", (Route(cpu.name, cpu.name),), (cpu,), False, "", intra, inter)
    first_gpu = 0
    if not settings.simulate_gpus:
        highest = max(map(max, filter(None, named.values())), default=0)
        first_gpu = first_own_gpu(highest, gpu_count, rank, workers)
    data_gpus = [first_gpu + gpu for gpu in named["data"]]
    model_gpus = [first_gpu + gpu for gpu in named["model"] or (0,)]

    limit_of = _limits(settings)
    data_role = "model" if limit_of["data"] is None else "data"
    data_slots = [(gpu, data_role) for gpu in data_gpus]
    model_slots = [(gpu, "model") for gpu in model_gpus]
    slots = {*data_slots, *model_slots}
    # A GPU of two roles is one device. Without memory limits both roles have the same one.
    observer_slot = None
    for observer_gpu in named["observer"]:
        gpu = first_gpu + observer_gpu
        observer_slot = (gpu, "data") if (gpu, "data") in slots else (gpu, "model")
        slots.add(observer_slot)
    # Unused GPUs as well, so that /CPU:2 is simulated GPU 2.
    if settings.simulate_gpus:
        slots |= {(gpu, "model") for gpu in set(range(count)).difference(data_gpus, model_gpus)}
    kind = "/CPU" if settings.simulate_gpus else "/GPU"
    name_of = {slot: f"{kind}:{i}" for i, slot in enumerate(sorted(slots))}
    devices = tuple(
        LogicalDevice(name_of[slot], slot[0], limit_of[slot[1]]) for slot in sorted(slots)
    )
    data = [name_of[slot] for slot in data_slots]
    models = [name_of[slot] for slot in model_slots]
    further, shares = tuple(data[1:]), settings.data_shares
    routes = tuple(Route((data or [model])[0], model, further, shares) for model in models)
    if observer_slot:
        observer = name_of[observer_slot]
    else:
        observer = _observer(str(settings.observer), routes)
    if observer == models[0]:
        observer = ""
    return Placement(
        _name(routes), routes, devices, bool(settings.simulate_gpus), observer, intra, inter
    )


def _observer(setting: str, routes: Sequence[Route]) -> str:
    """Return the device of the observer that is not named by its index; empty for the model's."""
    data = routes[0].data
    devices = {"auto": data, "data": data, "model": "", "cpu": "/CPU:0"}
    # By default nothing observes on a device that trains, which would wait for it.
    if any(data == route.model for route in routes):
        devices["auto"] = ""
    return devices[setting]


def named_data_gpus(settings: PlacementConfig) -> tuple[int, ...]:
    """Return the GPUs that make all batches; empty where each replica makes its own."""
    if settings.data_gpu is None:
        return settings.data_gpus
    return settings.data_gpus or (settings.data_gpu,)


def _named_model_gpus(settings: PlacementConfig) -> tuple[int, ...]:
    if settings.model_gpu is None:
        return settings.model_gpus
    return settings.model_gpus or (settings.model_gpu,)


def named_gpus(settings: PlacementConfig) -> tuple[int, ...]:
    """Return all GPUs that the settings name: first those that make batches."""
    return *named_data_gpus(settings), *_named_model_gpus(settings)


def flags_of_gpus(settings: PlacementConfig) -> list[str]:
    """Return the flags by which the settings name GPUs."""
    names = [*(setting.name for setting in marked(NAMES_GPUS)), "data_gpu_memory"]
    return [flag_of(name) for name in names if getattr(settings, name) not in (None, ())]


def hidden_gpus_warning(simulated: int, visible: int) -> str:
    """Return the warning that simulated GPUs hide real ones."""
    return (
        f"WARNING        --simulate-gpus {simulated} trains on the CPU, but this process sees real"
        f" GPUs ({visible}). To train there: --simulate-gpus 0"
    )


def _limits(settings: PlacementConfig) -> dict[str, int | None]:
    """Return each role's memory limit in MiB; without limits one GPU is one device."""
    data, model = settings.data_gpu_memory, settings.model_gpu_memory
    if not settings.enable_memory_isolation and data is None and model is None:
        return {"data": None, "model": None}
    return {"data": data or DEFAULT_DATA_MEMORY_MIB, "model": model or DEFAULT_MODEL_MEMORY_MIB}


def _check_contradictions(settings: PlacementConfig) -> None:
    data, models = settings.data_gpus, settings.model_gpus
    has_data, has_model = bool(named_data_gpus(settings)), bool(_named_model_gpus(settings))
    contradictions = (
        (
            settings.placement == "auto",
            "--placement auto was given, but only `myxtts train` measures before it trains. Name"
            " the devices with --data-gpu and --model-gpu, or leave it out.",
        ),
        (
            (settings.data_gpu is not None and data) or (settings.model_gpu is not None and models),
            "one GPU and a list of GPUs were both given for the same role. Use one of --data-gpu"
            " and --data-gpus, and one of --model-gpu and --model-gpus.",
        ),
        (
            has_data != has_model and not models,
            "only one of --data-gpu and --model-gpu was given. Give both to make batches on one GPU"
            " and train on another (the same index twice for one GPU), or neither to train on"
            " GPU 0.",
        ),
        (
            len({*data}) < len(data) or len({*models}) < len(models),
            "--data-gpus or --model-gpus names a GPU twice. Each producer and each replica needs"
            " its own GPU.",
        ),
        (
            settings.data_shares and len(settings.data_shares) != len(named_data_gpus(settings)),
            f"--data-shares has {len(settings.data_shares)} numbers for"
            f" {len(named_data_gpus(settings))} data GPUs. Give one for each of --data-gpus.",
        ),
        (
            settings.simulate_gpus and settings.observer == "cpu",
            "--observer cpu was given with --simulate-gpus, whose GPUs are parts of the CPU. Give"
            " the index of a simulated GPU, such as --observer 0.",
        ),
        (
            settings.data_gpu_memory is not None and not has_data,
            "--data-gpu-memory was given without --data-gpu. Name the GPU that makes the batches.",
        ),
    )
    for is_met, message in contradictions:
        if is_met:
            raise PlacementError(message)


def _gpus_by_role(settings: PlacementConfig) -> dict[str, tuple[int, ...]]:
    """Return the GPUs that the settings name for each role."""
    observer = (settings.observer,) if isinstance(settings.observer, int) else ()
    models = _named_model_gpus(settings)
    return {"data": named_data_gpus(settings), "model": models, "observer": observer}


def _check_gpus_exist(
    settings: PlacementConfig, count: int, named: dict[str, tuple[int, ...]]
) -> None:
    if count == 0 and (settings.enable_memory_isolation or settings.model_gpu_memory is not None):
        raise PlacementError(
            "a memory limit was set, but TensorFlow sees no GPU. Make one visible, or give"
            " --no-enable-memory-isolation --model-gpu-memory null."
        )
    source = "--simulate-gpus makes" if settings.simulate_gpus else "TensorFlow sees"
    numbers = {0: "no GPU", 1: "1 GPU, number 0", 2: "2 GPUs, numbers 0 and 1"}
    existing = numbers.get(count, f"{count} GPUs, numbers 0 to {count - 1}")
    for role, gpus in named.items():
        if gpus and max(gpus) >= count:
            raise PlacementError(
                f"{role} GPU {max(gpus)} was requested, but {source} {existing}. To train on one"
                " device, leave out --data-gpu, --data-gpus, --model-gpu, --model-gpus and"
                " --observer; --simulate-gpus tries the placement on the CPU."
            )


def _name(routes: tuple[Route, ...]) -> str:
    if not any(route.is_between_devices for route in routes):
        return "single" if len(routes) == 1 else "replicated"
    name = "dual"
    if routes[0].further_data:
        name += f", {len(routes[0].data_devices)} producers"
    if len(routes) > 1:
        name += f", {len(routes)} replicas"
    return name
