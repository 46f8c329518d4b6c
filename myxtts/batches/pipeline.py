"""Stages A to D of a batch's life, put together for a corpus.

What comes in are a corpus with its plan, the routes of this process (which data devices serve which
model device), and the extractor of the task. On the main thread, `Pipeline` makes a producer for
each data device, and opens feeds from any position of the plan. Each feed runs in a thread of its
own: it takes batches that tf.data's threads have read and uploaded (stages A to C), and issues the
compiled function that makes features of them (stage D). What goes out are batches of features on
the data devices, one for each replica, in the order of training, for the loop of a run or an
observer.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

from myxtts.audio.format import HOP_SAMPLES, sample_rate_hz
from myxtts.base.members import member_of, read_member
from myxtts.batches.corpora import Corpus
from myxtts.batches.pcm_cache import open_cache, rows_from_cache
from myxtts.batches.plan import Pass, PlannedBatch, planned_batches
from myxtts.batches.reading import ReadBatches, Reader, rows_from_files, rows_from_members
from myxtts.batches.shard_cache import ShardCache
from myxtts.config.schema import Config, DataConfig
from myxtts.corpus.manifest import Manifest
from myxtts.devicefeed.contract import FeatureExtractor, Field
from myxtts.devicefeed.feed import Feed
from myxtts.devicefeed.internals import run_operations_as_kernels
from myxtts.devicefeed.producer import Producer, ReplicaBatches, ReplicaFeed
from myxtts.devicefeed.routes import Route


@dataclass(frozen=True)
class PassReader:
    """Opens the batches of a pass for some replicas on a device: stages A to C.

    `plan_pass` is `planned_batches` of the corpus, with only the pass, replicas and turns missing.
    """

    plan_pass: Callable[..., Iterator[PlannedBatch]]
    reader: Reader
    device: str
    replicas: Sequence[int]

    def planned(self, corpus_pass: Pass, turns=None) -> Iterator[PlannedBatch]:
        return self.plan_pass(corpus_pass, replicas=self.replicas, turns=turns)

    def __call__(self, corpus_pass: Pass, turns=None) -> ReadBatches:
        """Plan, read and upload all microbatches, or only the turns of this producer."""
        return self.reader.read(self.planned(corpus_pass, turns), self.device)


class Pipeline:
    """Opens feeds over a corpus along the routes of this process; `producers` has its producers.

        pipeline = Pipeline(corpus, routes, extractor, data, seed=0, cache_folder=folder)
        with pipeline.open_feed(Pass(epochs=1)) as feed:
            for microbatches in step_batches(feed):

    The plan of the corpus counts the replicas of all processes. `first_replica` is the number of
    the first route's replica among them. `cache_folder` gets the decoded corpus if `cache_dataset`
    is on.
    """

    # One reader serves all producers, since they read the same manifest. Routes with the same data
    # devices form a group. If a group has one data device, its producer makes a batch for each
    # replica of the group. If it has several, each has a producer, and they take turns: every
    # producer makes the whole microbatch at its turns, and leaves the others out.
    def __init__(
        self,
        corpus: Corpus,
        routes: Sequence[Route],
        extractor: FeatureExtractor,
        data: DataConfig,
        *,
        seed: int,
        cache_folder: Path,
        synchronize: bool = False,
        first_replica: int = 0,
    ):
        # From here on, several threads run eager operations: the producers' and an observer's.
        run_operations_as_kernels()
        manifest = corpus.manifest
        reference_samples = reference_samples_of(data)
        reader = make_reader(manifest, extractor.inputs, reference_samples, data, cache_folder)
        plan_pass = partial(
            planned_batches,
            corpus.plan,
            manifest,
            seed=seed,
            reference_samples=reference_samples,
            teacher_rows=corpus.teacher_rows,
        )
        self._depth = data.prefetch_buffer_size
        # A data device has one producer, which its routes share. The data devices of a route take
        # turns.
        routes_of: dict[tuple[str, ...], list[int]] = {}
        for index, route in enumerate(routes):
            routes_of.setdefault(route.data_devices, []).append(index)
        self._indices = list(routes_of.values())
        self._groups = []
        for data_devices, indices in routes_of.items():
            replicas = [first_replica + index for index in indices]
            group = []
            for device in data_devices:
                read = PassReader(plan_pass, reader, device, replicas)
                route = routes[indices[0]]
                group.append(Producer(read, extractor, device, len(indices), route, synchronize))
            self._groups.append(group)
        self.producers = list(chain.from_iterable(self._groups))

    def planned(self, corpus_pass: Pass) -> Iterator[PlannedBatch]:
        """Return the batches that the first producer will read."""
        read = self.producers[0].read
        assert isinstance(read, PassReader)
        return read.planned(corpus_pass)

    def open_unbuffered(
        self, corpus_pass: Pass
    ) -> "closing[Generator[ReplicaBatches, None, None]]":
        """Yield batches of the only producer in the caller's thread, each when it is taken."""
        (producer,) = self.producers
        return closing(producer.replica_batches(corpus_pass))

    def open_feed(self, corpus_pass: Pass) -> "ReplicaFeed":
        routes = [producers[0].route for producers in self._groups]
        return ReplicaFeed(self.feeds(corpus_pass), self._indices, routes)

    def feeds(self, corpus_pass: Pass) -> list[list[Feed[ReplicaBatches]]]:
        """Return a new feed of each producer, by group; they are not open yet."""
        return [
            [Feed(producer.replica_batches(corpus_pass), self._depth) for producer in group]
            for group in self._groups
        ]


def held_out_pipeline(
    corpus: Corpus, route: Route, extractor: FeatureExtractor, config: Config, cache_folder: Path
) -> Pipeline:
    """Return the pipeline of held-out batches: validation, samples, evaluation, merging.

    Open it with HELD_OUT_PASS, or with `Pass(epochs=1)` where losses do not count.
    """
    seed = config.training.seed
    return Pipeline(corpus, [route], extractor, config.data, seed=seed, cache_folder=cache_folder)


def reference_samples_of(data: DataConfig) -> int:
    """Return the padded length of the references: a whole number of frames."""
    return int(data.reference_seconds * sample_rate_hz()) // HOP_SAMPLES * HOP_SAMPLES


def make_reader(
    manifest: Manifest,
    fields: dict[str, Field],
    reference_samples: int,
    data: DataConfig,
    cache_folder: Path,
) -> Reader:
    """Return the reader that the settings ask for: from the cache, from shards or from files."""
    if data.cache_dataset:
        read_rows = rows_from_cache(manifest, open_cache(manifest, cache_folder, data.num_workers))
    elif len(manifest) and member_of(manifest.paths[0]):
        read = read_member
        if manifest.shard_cache is not None and data.shard_cache_gb:
            read = ShardCache(manifest.shard_cache, 1e9 * data.shard_cache_gb).read
        read_rows = rows_from_members(manifest, read)
    else:
        read_rows = rows_from_files(manifest, data.use_tf_native_loading)
    return Reader(manifest, fields, reference_samples, data, read_rows)


def step_batches(feed: Iterable[ReplicaBatches]) -> Iterator[list[ReplicaBatches]]:
    """Yield lists of microbatches, one list for each step."""
    microbatches = []
    for batches in feed:
        microbatches.append(batches)
        if batches[0].tag.last:
            yield microbatches
            microbatches = []
