"""The choice among implementations of the alignment search, which all find the same path."""

import timeit
from collections.abc import Callable
from functools import cache, partial
from statistics import median

import tensorflow as tf

from myxtts.base.errors import ConfigError
from myxtts.placement.devices import xla_failure
from myxtts.tasks.tts.alignment import search_by_blocks, search_by_frames

HOST = "/CPU:0"
# The median of 5 leaves out two interruptions by other processes.
REPEATS = 5

Search = Callable[..., tf.Tensor]
"""See `search_by_frames`."""


# Candidates are `xla` on the model device and `host`. The setting, or a CPU, leaves one of them.
# What XLA cannot compile is removed: with an error if it was asked for by name, else with a note in
# the log. `loop`, which needs no XLA, remains where nothing else does. If two are left, both are
# timed.
def choose_alignment_search(
    setting: str, compile_step: bool, device: str, sizes: dict[str, int]
) -> tuple[Search, str]:
    """Choose the fastest search that works on a model device; also return the log's line about it.

    The sizes are batch, frames and tokens of a batch of the run. Raises ConfigError if the setting
    `alignment_search` names a search that needs XLA where XLA does not work.
    """
    # XLA compiles each for its device. `loop` needs no XLA, so it remains where neither works.
    devices = {"xla": device, "host": HOST}
    if setting != "auto":
        devices = {name: device for name, device in devices.items() if name == setting}
    elif compile_step or _is_cpu(device):
        del devices["host"]
    reasons = {name: xla_failure(compiled_on) for name, compiled_on in devices.items()}
    # A search that was asked for by name is never replaced by a slower one without a word.
    if reasons.get(setting):
        raise ConfigError(
            f"--alignment-search {setting} was given, but XLA does not work on {devices[setting]} "
            f"({reasons[setting]}). Leave out --alignment-search."
        )
    failed = [(name, reason) for name, reason in reasons.items() if reason]
    names = [name for name in devices if not reasons[name]] or ["loop"]
    searches = {name: search_of(name, device) for name in names}
    if len(names) > 1:
        return _fastest(searches, device, sizes)
    (name,) = names
    why = "; ".join(f"XLA does not work on {devices[n]} ({reason})" for n, reason in failed)
    line = f"{name}: {why}" if why else name
    return searches[name], line


def _is_cpu(device: str) -> bool:
    return tf.DeviceSpec.from_string(device).device_type == "CPU"


def search_of(name: str, device: str) -> Search:
    """Return the search `xla`, `host` or `loop` for a model device."""
    if name == "loop":
        return search_by_frames
    if name == "host":
        return _on_host
    return compiled(search_by_frames if _is_cpu(device) else search_by_blocks)


@cache
def compiled(function: Callable) -> Callable:
    """Return a function compiled by XLA."""
    return tf.function(function, jit_compile=True, autograph=False)


def _on_host(score, token_count, frames):
    """Search on the host's CPU, while the device does what does not depend on the path."""
    with tf.device(HOST):
        path = compiled(search_by_frames)(score, token_count, frames)
    return tf.identity(path)


def _fastest(searches: dict[str, Search], device: str, sizes: dict[str, int]) -> tuple[Search, str]:
    """Measure the searches on a device, copies included."""
    rows, frames, tokens = sizes["batch"], sizes["frames"], sizes["tokens"]
    with tf.device(device):
        # The time of a search depends on the shape alone, not on the scores.
        score = tf.random.stateless_normal([rows, frames, tokens], [0, 0])
        counts, lengths = tf.fill([rows], min(tokens, frames)), tf.fill([rows], frames)
        times_ms = {
            name: _milliseconds(partial(search, score, counts, lengths))
            for name, search in searches.items()
        }
    # The slower ones stay in the log, so that a reader sees how close the choice was.
    first, *others = sorted(times_ms, key=times_ms.__getitem__)
    slower = ", ".join(f"{name} {times_ms[name]:.1f} ms" for name in others)
    shape = f"{rows} x {frames} frames x {tokens} tokens"
    return searches[first], f"{first}, {times_ms[first]:.1f} ms for {shape} ({slower})"


def _milliseconds(search: Callable[[], tf.Tensor]) -> float:
    # The first call compiles.
    search().numpy()
    return 1e3 * median(timeit.repeat(lambda: search().numpy(), number=1, repeat=REPEATS))
