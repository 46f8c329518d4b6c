"""Runs a producer in its own thread, ahead of its consumer."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

STOP_POLL_S = 0.1

Item = TypeVar("Item")


class StopArrived(Exception):
    """A request to stop arrived while the consumer waited for an item."""


class HoldingQueue(queue.Queue):
    """A queue whose first item can be taken while its place stays occupied."""

    def hold(self, is_stopped: Callable[[], bool]) -> Any:
        """Wait for the first item and return it, or raise StopArrived; `get` frees its place."""
        with self.not_empty:
            while not self._qsize():
                if is_stopped():
                    raise StopArrived
                self.not_empty.wait(STOP_POLL_S)
            item, self.queue[0] = self.queue[0], None
            return item


class Feed(Generic[Item]):
    """A queue that a thread fills from an iterable, at most `depth` items ahead of the consumer.

    Items come out in order, and any depth gives the same items. An error in the iterable is raised
    in the consumer, instead of the item at which it occurred. Closing is safe at any time, also
    while the feed is full, and leaves no thread behind: `with Feed(batches, 3) as feed`. The
    iterable is iterated and closed in the feed's thread only, which makes one item more than the
    depth. `is_stopped` is polled while the consumer waits, which then ends with StopArrived.
    """

    def __init__(self, batches: Iterable[Item], depth: int, thread_name: str = "myxtts-producer"):
        assert depth >= 1
        self._batches = batches
        self.is_stopped: Callable[[], bool] = lambda: False
        self._ready = HoldingQueue(depth)
        self._holds = False
        self._stopping = threading.Event()
        self._full = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=thread_name, daemon=True)

    def __enter__(self) -> "Feed[Item]":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ended = True
        self._stopping.set()
        while self._thread.is_alive():
            # Frees a producer that is blocked on a full queue.
            self._drain()
            self._thread.join(timeout=0.01)
        self._drain()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        item = self.hold()
        self.release()
        return item

    def hold(self) -> Item:
        """Return the next item as `next` does, but keep its place until `release` or the next."""
        if self._ended:
            raise StopIteration
        self.release()
        item, error = self._ready.hold(self.is_stopped)
        self._holds = True
        if error is None:
            return item
        self._ended = True
        raise error

    def release(self) -> None:
        """Free the place of the item that is held, if there is one."""
        if self._holds and not self._ready.empty():
            self._ready.get_nowait()
        self._holds = False

    @property
    def is_ready(self) -> bool:
        return self._ended or self._ready.qsize() > self._holds

    @property
    def is_full(self) -> bool:
        """Whether the thread has nothing to do: the queue is full, or the iterable has ended."""
        return self._ended or self._ready.full() or not self._thread.is_alive()

    def wait_until_full(
        self, timeout_s: float, is_stopped: Callable[[], bool] = lambda: False
    ) -> float:
        """Return the seconds waited for the feed to be full once, for its end, or for a stop."""
        start_s = time.perf_counter()
        while (left_s := start_s + timeout_s - time.perf_counter()) > 0.0 and not is_stopped():
            if self._full.wait(min(left_s, STOP_POLL_S)):
                break
        return time.perf_counter() - start_s

    def _run(self) -> None:
        error: BaseException = StopIteration()
        try:
            iterator = iter(self._batches)
            try:
                for item in iterator:
                    self._ready.put((item, None))
                    if self._ready.full():
                        self._full.set()
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
        self._full.set()
        self._ready.put((None, error))

    def _drain(self) -> None:
        while not self._ready.empty():
            self._ready.get_nowait()
