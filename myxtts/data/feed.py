"""The hand-off between the producer's thread and the training loop."""

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Feed(Generic[Item]):
    """Runs an iterable in a thread, at most `depth` items ahead of its consumer.

    Items come out in order. An error in the iterable is raised in the consumer, in place of the
    item during which it happened. Closing is safe at any moment, also while the feed is full, and
    leaves no thread. Any depth gives the same items.

        with Feed(batches, depth=3) as feed:
            for batch in feed:
                ...

    Args:
        batches: iterated in the feed's own thread only; its `close`, if it has one, is called there.
        depth: items kept ready beyond the one that is being made.

    Raises:
        ValueError: the depth is not at least 1.
        RuntimeError: it is iterated before it was entered, or entered twice.
    """

    def __init__(self, batches: Iterable[Item], depth: int):
        if depth < 1:
            raise ValueError(f"a feed needs a depth of at least 1, not {depth}")
        self._batches = batches
        self._ready: queue.Queue = queue.Queue(depth)
        self._stopping = threading.Event()
        self._full = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._produce, name="myxtts-producer", daemon=True)

    def __enter__(self) -> "Feed[Item]":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._ended = True
        self._stopping.set()
        while self._thread.is_alive():
            self._drain()  # frees a producer that is blocked on a full queue
            self._thread.join(timeout=0.01)
        self._drain()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._ended:
            raise StopIteration
        if self._thread.ident is None:
            raise RuntimeError("a feed has items only inside its `with` block")
        item, error = self._ready.get()
        if error is None:
            return item
        self._ended = True
        raise error

    def wait_until_full(self, timeout_s: float) -> float:
        """Wait until the feed has once been full or its iterable has ended, `timeout_s` at the longest.

        Returns:
            The seconds waited.
        """
        start_s = time.perf_counter()
        self._full.wait(timeout_s)
        return time.perf_counter() - start_s

    def _produce(self) -> None:
        error: BaseException = StopIteration()
        try:
            iterator = iter(self._batches)
            try:
                self._fill(iterator)
            finally:
                if hasattr(iterator, "close"):
                    iterator.close()
        except BaseException as raised:  # passed on: the consumer raises it at this batch
            error = raised
        self._full.set()
        self._ready.put((None, error))

    def _fill(self, iterator: Iterator[Item]) -> None:
        for item in iterator:
            self._ready.put((item, None))
            if self._ready.full():
                self._full.set()
            if self._stopping.is_set():
                return

    def _drain(self) -> None:
        while not self._ready.empty():
            self._ready.get_nowait()
