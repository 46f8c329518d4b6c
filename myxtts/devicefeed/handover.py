"""From the data device to the model device, ahead of the step that takes a batch.

What comes in are batches of a feed, one for each replica. The main thread takes them, one step and
HANDED_OVER_AHEAD microbatches more, and threads copy each to its model device by `tf.identity`.
What goes out are the copies, in the order of the feed.

TensorFlow lets a copy between GPUs wait for everything that is queued on both when it is issued,
and its caller wait for the copy (`GPUUtil::DeviceToDeviceCopy`). So threads call it, early.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tensorflow as tf

from .contract import Batch, Field, tensor_specs
from .devices import synchronize
from .feed import Feed
from .producer import ReplicaBatches, ReplicaFeed

# Microbatches whose copies have begun, besides the one that a step takes next. So the copy for a
# step begins behind the step that is three before it, and may be issued a whole step late without
# letting a device wait.
HANDED_OVER_AHEAD = 2


class HandOver:
    """Copies a batch of a contract to each of some devices; to be made on the main thread.

    Calling it waits until the copies are done. `begin` has a thread do that.
    """

    def __init__(self, fields: Mapping[str, Field], devices: Sequence[str]):
        def copy(batches: Sequence[Batch]) -> list[Batch]:
            copies = []
            for batch, device in zip(batches, devices, strict=True):
                with tf.device(device):
                    copies.append({name: tf.identity(value) for name, value in batch.items()})
            return copies

        specs = [tensor_specs(dict(fields))] * len(devices)
        self._copy = tf.function(copy, autograph=False).get_concrete_function(specs)
        self._device = devices[0]
        self._threads = ThreadPoolExecutor(1 + HANDED_OVER_AHEAD, "feed-hand-over")

    def __call__(self, batches: Sequence[Batch]) -> list[Batch]:
        # The `device` of the results; their `backing_device` is the one of each copy.
        with tf.device(self._device):
            return self._copy(list(batches))

    def begin(self, batches: Sequence[Batch]) -> "Future[list[Batch]]":
        return self._threads.submit(self, batches)

    def close(self) -> None:
        """Wait for the copies that have begun, and leave no thread."""
        self._threads.shutdown()


@dataclass(eq=False)
class Microbatch:
    """A batch of each replica: features on the data devices, then copies on the model devices."""

    produced: ReplicaBatches
    copies: Future[list[Batch]] | None = None

    @property
    def is_last(self) -> bool:
        """Whether it is the last one of its step."""
        return self.produced[0].tag.last

    def begin(self, hand_over: HandOver) -> Future[list[Batch]]:
        """Begin to copy it, if this has not begun yet, and return the copies."""
        if self.copies is None:
            self.copies = hand_over.begin([batch.features for batch in self.produced])
            # The copy needs them until it is done, and nobody else.
            self.produced = tuple(batch._replace(features={}) for batch in self.produced)
        return self.copies


class StepBatches:
    """The microbatches of a step; to be iterated once, it returns them on the model devices.

    Those that follow are handed over ahead. They may belong to the next steps.

    Attributes:
        tag: of its first batch.
        times: of all its batches in their producers.
        newest: the microbatch that was returned last, a batch for each replica.
    """

    def __init__(
        self,
        microbatches: Sequence[Microbatch],
        following: Iterable[Microbatch],
        hand_over: HandOver,
    ):
        produced = list(chain.from_iterable(each.produced for each in microbatches))
        self.tag: Any = produced[0].tag
        self.times = [batch.times for batch in produced]
        self.newest: list[Batch] = []
        self._count, self._coming = len(microbatches), [*microbatches, *following]
        self._hand_over = hand_over

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[Batch]]:
        for _ in range(self._count):
            begun = self._coming[: 1 + HANDED_OVER_AHEAD]
            copies = [microbatch.begin(self._hand_over) for microbatch in begun]
            del self._coming[0]
            self.newest = copies[0].result()
            yield self.newest


class LookAhead:
    """Takes the microbatches of one step after the other from a feed, and those that follow ahead.

    A wait for the feed counts from the moment when the device has finished the running step: until
    then, it has work.

    Args:
        wait: makes a scope in which the model device waits for a batch.
        synchronize: waits until the model device has finished the step of an outcome.
    """

    def __init__(
        self,
        feed: ReplicaFeed | Feed[ReplicaBatches],
        hand_over: HandOver,
        wait: Callable[[], AbstractContextManager] = nullcontext,
        synchronize: Callable[[tf.Tensor], object] = synchronize,
    ):
        self._feed, self._hand_over = feed, hand_over
        self._wait, self._synchronize = wait, synchronize
        self._taken: deque[Microbatch] = deque()
        self._error: Exception | None = None

    def take(self, running: tf.Tensor | None, steps_left: int) -> StepBatches:
        """Return the batches of the next step; raise an error of the feed instead of a batch of it.

        `running` is the outcome of the previous step. After the last step no batch is taken.
        """
        while self._error is None and not self._has_enough(steps_left):
            try:
                if running is not None and not self._feed.is_ready:
                    self._synchronize(running)
                with self._wait():
                    self._taken.append(Microbatch(next(self._feed)))
            except Exception as error:
                # Raised instead of its batch, after the steps that have theirs.
                self._error = error
        is_last = [microbatch.is_last for microbatch in self._taken]
        if True not in is_last:
            assert self._error is not None
            raise self._error
        microbatches = [self._taken.popleft() for _ in range(1 + is_last.index(True))]
        return StepBatches(microbatches, self._taken, self._hand_over)

    def _has_enough(self, steps_left: int) -> bool:
        """Whether a step and what is handed over ahead of it are there, or all steps left."""
        is_last = [microbatch.is_last for microbatch in self._taken]
        if sum(is_last) >= steps_left:
            return True
        return True in is_last and len(is_last) - is_last.index(True) > HANDED_OVER_AHEAD
