"""Runs a producer in its own thread, ahead of its consumer."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, Queue
from typing import Any, Generic, TypeVar

STOP_POLL_S = 0.1
FULL_POLL_S = 0.01

Item = TypeVar("Item")


class StopArrived(Exception):
    """A request to stop arrived while the consumer waited for an item."""


class Feed(Generic[Item]):
    """A queue that a thread fills from an iterable, at most `depth` items ahead of the consumer.

    Items come out in order, and any depth gives the same items. An error in the iterable is raised
    in the consumer, instead of the item at which it occurred. Closing is safe at any time, also
    while the feed is full, and leaves no thread behind: `with Feed(batches, 3) as feed`. The
    iterable is iterated and closed in the feed's thread only, which makes one item more than the
    depth. `is_stopped` is polled while the consumer waits, which then ends with StopArrived.
    """

    def __init__(self, batches: Iterable[Item], depth: int):
        assert depth >= 1
        self._batches = batches
        self.is_stopped: Callable[[], bool] = lambda: False
        self._ready: Queue[tuple[Any, BaseException | None]] = Queue(depth)
        self._stopping = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="feed-producer", daemon=True)

    def __enter__(self) -> "Feed[Item]":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ended = True
        self._stopping.set()
        while self._thread.is_alive() or not self._ready.empty():
            # Frees a producer that is blocked on a full queue.
            while not self._ready.empty():
                self._ready.get_nowait()
            self._thread.join(timeout=0.01)

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while not self._ended:
            try:
                item, error = self._ready.get(timeout=STOP_POLL_S)
            except Empty:
                if self.is_stopped():
                    raise StopArrived from None
                if self._thread.ident is None:
                    raise RuntimeError("no thread fills this feed: use it inside `with`") from None
                continue
            if error is None:
                return item
            self._ended = True
            raise error
        raise StopIteration

    @property
    def is_ready(self) -> bool:
        return self._ended or not self._ready.empty()

    @property
    def fill(self) -> tuple[int, int]:
        """The items that wait for the consumer, and how many there can be."""
        with self._ready.mutex:
            return sum(error is None for _, error in self._ready.queue), self._ready.maxsize

    @property
    def is_full(self) -> bool:
        """Whether the thread has nothing to do: the queue is full, or the iterable has ended."""
        return self._ended or self._ready.full() or not self._thread.is_alive()

    def wait_until_full(
        self, timeout_s: float, is_stopped: Callable[[], bool] = lambda: False
    ) -> float:
        """Return the seconds waited for the feed to be full, for its end, or for a stop."""
        start_s = time.perf_counter()
        while not (self.is_full or is_stopped()):
            if (left_s := start_s + timeout_s - time.perf_counter()) <= 0.0:
                break
            time.sleep(min(left_s, FULL_POLL_S))
        return time.perf_counter() - start_s

    def _run(self) -> None:
        error: BaseException = StopIteration()
        try:
            iterator = iter(self._batches)
            try:
                for item in iterator:
                    self._ready.put((item, None))
                    if self._stopping.is_set():
                        break
                    # A closed feed holds no item.
                    del item
            finally:
                if hasattr(iterator, "close"):
                    iterator.close()
        except BaseException as raised:
            # Not lost with this thread: the consumer raises it at this batch.
            error = raised
        self._ready.put((None, error))
