"""Reading files as PCM by each reader and the cache, and loading the corpora of a run."""

import itertools
import os
import tarfile
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest import mock

from tests.two_devices import DATA

# isort: split

import numpy as np
import soundfile
import tensorflow as tf
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.config import disable_op_determinism

from myxtts.audio.audio_file import WHOLE, read_pcm, resampled_length
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.sound_header import read_header
from myxtts.base.errors import DataError
from myxtts.base.members import Member
from myxtts.base.progress import Position
from myxtts.batches.contract import TTS_INPUTS
from myxtts.batches.corpora import load_corpora
from myxtts.batches.pcm_cache import open_cache, rows_from_cache
from myxtts.batches.plan import Pass, PlannedBatch, planned_batches
from myxtts.batches.reading import Reader, rows_from_files, rows_from_members, unreadable
from myxtts.config.schema import Config, DataConfig, TrainingConfig
from myxtts.corpus.manifest import LengthRule
from myxtts.devicefeed.audit import require_device
from myxtts.devicefeed.contract import check_batch
from tests.fixtures import temporary_folder
from tests.sine_corpus import (
    frequency,
    manifest_of,
    pitch_of,
    planned_corpus,
    sine,
    write_corpus,
    write_sound,
)
from tests.test_manifest import WAV_FILES


def planned(corpus, start, epochs=None, mean_over="step", seed=1):
    source = corpus.plan, corpus.manifest, Pass(start, epochs, mean_over)
    return planned_batches(*source, seed=seed, reference_samples=6_400)


class FolderCase(unittest.TestCase):
    def setUp(self):
        self.folder = temporary_folder(self.addCleanup, "with space ")


class ReadPcmTest(FolderCase):
    def test_16_bit_samples_are_returned_unchanged(self):
        pcm = np.array([0, 1, -1, 12_345, -32_768, 32_767], np.int16)
        soundfile.write(self.folder / "a.wav", pcm, SAMPLE_RATE_HZ)
        np.testing.assert_array_equal(read_pcm(self.folder / "a.wav"), pcm, strict=True)

    def test_every_format_and_rate_keeps_pitch_level_and_length(self):
        for suffix, rate_hz, subtype in (
            *(("wav", 8_000, "PCM_16"), ("wav", 22_050, "PCM_24"), ("wav", 48_000, "FLOAT")),
            *(("wav", 16_000, "ULAW"), ("flac", 44_100, "PCM_16"), ("flac", 96_000, "PCM_24")),
            *(("ogg", 22_050, "VORBIS"), ("mp3", 44_100, None)),
        ):
            with self.subTest(suffix, rate_hz=rate_hz, subtype=subtype):
                path = self.folder / f"tone.{suffix}"
                tone = sine(440.0, 0.7, rate_hz)
                write_sound(path, np.stack([tone, tone], axis=1), rate_hz, subtype)
                pcm = read_pcm(path, round(0.7 * SAMPLE_RATE_HZ))
                self.assertEqual((pcm.dtype, pcm.shape), (np.int16, (15_435,)))
                self.assertAlmostEqual(frequency(pcm), 440.0, delta=1.5)
                error = pcm / 32_768 - sine(440.0, 0.7)
                self.assertLess(np.abs(error[2_000:-2_000]).max(), 0.02)

    def test_frequencies_above_nyquist_are_removed(self):
        # Its alias would be at 7,050 Hz.
        write_sound(self.folder / "a.wav", sine(15_000.0, 0.5, 44_100), 44_100)
        self.assertLess(np.abs(read_pcm(self.folder / "a.wav")[500:-500]).max(), 40)

    def test_channels_are_averaged(self):
        write_sound(self.folder / "a.wav", np.array([[0.5, 0.25], [0.25, -0.5]]))
        np.testing.assert_array_equal(read_pcm(self.folder / "a.wav"), [12_288, -4_096])

    def test_samples_beyond_full_scale_are_clipped(self):
        write_sound(self.folder / "a.wav", np.array([1.5, -1.5, 1.0, -1.0]), subtype="FLOAT")
        self.assertEqual(read_pcm(self.folder / "a.wav").tolist(), [32_767, -32_768] * 2)

    def test_the_length_in_the_manifest_matches_the_resampler(self):
        for rate_hz in (8_000, 16_000, 24_000, 44_100, 48_000):
            for samples in (3_000, 6_615, 50_000):
                write_sound(self.folder / "a.wav", np.zeros(samples), rate_hz)
                expected = resampled_length(samples, rate_hz)
                self.assertEqual(len(read_pcm(self.folder / "a.wav", expected)), expected)
                self.assertAlmostEqual(expected, samples * SAMPLE_RATE_HZ / rate_hz, delta=0.5)

    def test_an_unexpected_length_is_rejected(self):
        write_sound(self.folder / "a.wav", np.zeros(1_000))
        write_sound(self.folder / "b.wav", np.zeros(2_000), 44_100)
        for name, expected in (("a.wav", 999), ("a.wav", 1_001), ("b.wav", 998), ("b.wav", 1_002)):
            message = f"{name} has 1000 samples .* had {expected} when"
            with self.assertRaisesRegex(DataError, message):
                read_pcm(self.folder / name, expected)

    def test_an_unreadable_file_is_named_with_the_reason(self):
        (self.folder / "empty.wav").touch()
        (self.folder / "noise.wav").write_bytes(bytes(range(256)) * 9)
        (self.folder / "folder.wav").mkdir()
        write_sound(self.folder / "nan.wav", np.full(50_000, np.nan), subtype="FLOAT")
        write_sound(self.folder / "cut.flac", np.random.default_rng(0).uniform(-0.5, 0.5, 50_000))
        os.truncate(self.folder / "cut.flac", 50_000)
        for name, reason in (
            ("gone.wav", "cannot be read: No such file or directory"),
            ("folder.wav", "cannot be read: Is a directory"),
            ("empty.wav", "cannot be read: .*[Ff]ormat not recogni[sz]ed"),
            ("noise.wav", "cannot be read: .*[Ff]ormat not recogni[sz]ed"),
            ("nan.wav", "not finite"),
            ("cut.flac", "cannot be read: "),
        ):
            with self.subTest(name), self.assertRaisesRegex(DataError, f"{name}.*{reason}"):
                read_pcm(self.folder / name, 50_000)


class RowsCase(FolderCase):
    def rows(self, read_rows, *arguments):
        return concrete(read_rows)(*(tf.constant(value, tf.int32) for value in arguments)).numpy()

    def expected(self, manifest, rows, starts, samples, padded):
        """Return the segments read by soundfile, one at a time."""
        batch = np.zeros((len(rows), padded), np.int16)
        for to, row, start, count in zip(batch, rows, starts, samples, strict=True):
            whole, _ = soundfile.read(manifest.paths[row], dtype="int16")
            to[:count] = whole[start : start + count]
        return batch

    def readers(self, manifest):
        return {
            "native": rows_from_files(manifest, native_loading=True),
            "soundfile": rows_from_files(manifest, native_loading=False),
            "cache": rows_from_cache(manifest, open_cache(manifest, self.folder / "cache", 2)),
            "shards": rows_from_members(in_a_tar(manifest, self.folder)),
        }


class ReadRowsTest(RowsCase):
    def assert_all_read(self, manifest, *arguments):
        expected = self.expected(manifest, *arguments)
        for name, read_rows in self.readers(manifest).items():
            with self.subTest(name):
                samples = self.rows(read_rows, *arguments)
                np.testing.assert_array_equal(samples, expected, strict=True)

    def test_all_readers_return_the_samples_of_the_files_padded_with_silence(self):
        for suffixes, native in (((".wav",), [True] * 3), ((".wav", ".flac"), [True, False, True])):
            manifest = write_corpus(self.folder, [0.3, 0.4, 0.5], suffixes=suffixes)
            self.assertEqual(manifest.native.tolist(), native)
            arguments = ([2, 0, 1, 0], [100, 0, 8_000, 0], [5_000, 6_615, 820, 0], 7_000)
            self.assert_all_read(manifest, *arguments)
            whole = self.expected(manifest, range(3), [0] * 3, [6_615] * 3, 6_615)
            np.testing.assert_allclose([*map(frequency, whole)], [300, 340, 380], atol=5)

    def test_stretches_of_a_recording_are_read_without_cutting_it(self):
        for rate_hz, tolerance in ((SAMPLE_RATE_HZ, 0), (16_000, 1), (44_100, 1)):
            wave = np.random.default_rng(0).normal(0, 0.1, 9 * rate_hz)
            times = ((0, 0.5), (3.3, 4.1), (8.5, 9.0), (0, 9.0))
            lines = [f"long.flac,abc,{start},{end}" for start, end in times]
            path = self.folder / "list.csv"
            path.write_text("\n".join(["path,text,start,end", *lines]))
            write_sound(path.with_name("long.flac"), wave, rate_hz)
            manifest = manifest_of(path)
            whole = read_pcm(path.with_name("long.flac")).astype(int)
            begins = [round(start * SAMPLE_RATE_HZ) for start, _ in times]
            self.assertEqual(manifest.starts.tolist(), [*begins[:3], WHOLE])
            lengths = manifest.samples.tolist()
            for name, read_rows in self.readers(manifest).items():
                found = self.rows(read_rows, range(4), [0, 5, 7, 9], [9, 800, 90, 5], 1_000)
                for row, (skip, count) in enumerate(((0, 9), (5, 800), (7, 90), (9, 5))):
                    begin = begins[row] + skip
                    error = np.abs(found[row, :count] - whole[begin : begin + count]).max()
                    self.assertLessEqual(error, tolerance, (name, rate_hz, row))
                last = self.rows(read_rows, [2], [lengths[2] - 100], [100], 100)
                error = np.abs(last[0] - whole[-100:]).max()
                self.assertLessEqual(error, tolerance, (name, rate_hz))

    def test_tensorflow_decodes_native_files_to_the_same_length(self):
        path = self.folder / "a.wav"
        for name, (content, native) in WAV_FILES.items():
            if native:
                path.write_bytes(content)
                wave, rate_hz = tf.audio.decode_wav(content)
                expected = ((read_header(str(path)).samples, 1), SAMPLE_RATE_HZ)
                self.assertEqual((wave.shape, int(rate_hz)), expected, name)

    def test_a_file_that_changed_under_tensorflow_is_rejected(self):
        manifest = write_corpus(self.folder, [0.3])
        pcm = sine(440.0, 0.3)
        stereo = pcm[:-1].reshape(-1, 2)
        for changed, rate_hz in ((pcm[:-1], 22_050), (pcm, 16_000), (stereo, 22_050)):
            soundfile.write(manifest.paths[0], changed, rate_hz, "PCM_16")
            with self.assertRaises(tf.errors.InvalidArgumentError):
                self.rows(rows_from_files(manifest, native_loading=True), [0], [0], [6_615], 6_615)

    def test_full_scale_samples_are_exact_in_every_reader(self):
        manifest = write_corpus(self.folder, [0.3])
        extremes = np.resize(np.array([-32_768, 32_767, -32_767, 1, -1, 0], np.int16), 6_615)
        soundfile.write(manifest.paths[0], extremes, SAMPLE_RATE_HZ)
        self.assert_all_read(manifest, [0], [0], [6_615], 6_615)

    def test_an_empty_row_reads_no_file(self):
        manifest = write_corpus(self.folder, [0.3])
        readers = self.readers(manifest)
        os.remove(manifest.paths[0])
        for name, read_rows in readers.items():
            with self.subTest(name):
                self.assertFalse(self.rows(read_rows, [0, 0], [0, 0], [0, 0], 512).any())

    def test_native_utterances_are_read_without_python(self):
        manifest = write_corpus(self.folder, [0.3, 0.4])
        flac = write_corpus(self.folder / "flac", [0.3, 0.4], suffixes=(".wav", ".flac"))
        for expected, read_rows in (
            (False, rows_from_files(manifest, native_loading=True)),
            (True, rows_from_files(manifest, native_loading=False)),
            (True, rows_from_files(flac, native_loading=True)),
        ):
            types = operation_types(read_rows)
            self.assertIn("DecodeWav", types)
            self.assertEqual(any("PyFunc" in name for name in types), expected, types)

    def test_python_reads_only_the_other_utterances(self):
        manifest = write_corpus(self.folder, [0.3, 0.4], suffixes=(".wav", ".flac"))
        # This message can only come from Python.
        os.replace(manifest.paths[1], self.folder / "away")
        read_rows = rows_from_files(manifest, native_loading=True)
        arguments = [0], [0], [6_615], 6_615
        expected = self.expected(manifest, *arguments)
        np.testing.assert_array_equal(self.rows(read_rows, *arguments), expected)
        message = "DataError: .*u1.flac cannot be read: No such file"
        with self.assertRaisesRegex(tf.errors.OpError, message):
            self.rows(read_rows, [1], [0], [6_615], 6_615)

    def test_rank_is_static_and_dimensions_are_dynamic(self):
        manifest = write_corpus(self.folder, [0.3])
        for name, read_rows in self.readers(manifest).items():
            with self.subTest(name):
                self.assertEqual(concrete(read_rows).structured_outputs.shape.rank, 2)


def in_a_tar(manifest, folder):
    """Return the manifest with each file in a tar file."""
    places = []
    with tarfile.TarFile(folder / "shard.tar", "w") as tar:
        for path in map(Path, manifest.paths):
            begin = tar.offset + tarfile.BLOCKSIZE
            with open(path, "rb") as file:
                header = tarfile.TarInfo(path.name)
                header.size = path.stat().st_size
                tar.addfile(header, file)
            places.append(Member(str(folder / "shard.tar"), begin, header.size, path.name))
    return replace(manifest, paths=tuple(place.address for place in places))


def concrete(read_rows):
    ints, number = tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.int32)
    return tf.function(read_rows).get_concrete_function(ints, ints, ints, number)


def operation_types(read_rows) -> set[str]:
    """Return the types of all operations in the reader's graph, with branches and loop bodies."""
    graph = concrete(read_rows).graph.as_graph_def()
    nodes = itertools.chain(graph.node, *(f.node_def for f in graph.library.function))
    return {node.op for node in nodes}


class CacheTest(FolderCase):
    def setUp(self):
        super().setUp()
        seconds = [0.3, 0.31, 0.32]
        self.manifest = write_corpus(self.folder / "corpus", seconds, suffixes=(".wav", ".flac"))
        self.cache = self.folder / "run" / "cache"

    def open(self, manifest=None) -> np.ndarray:
        """Return the decoded samples."""
        path = open_cache(manifest or self.manifest, self.cache, 2)
        return np.fromfile(path, np.int16, self.manifest.samples.sum())

    def file(self) -> Path:
        """Return the only file of the cache."""
        (path,) = self.cache.iterdir()
        return path

    def test_cache_has_all_utterances_in_order(self):
        expected = [soundfile.read(path, dtype="int16")[0] for path in self.manifest.paths]
        np.testing.assert_array_equal(self.open(), np.concatenate(expected), strict=True)

    def pitch(self, manifest=None) -> float:
        """Return the frequency in Hz of the first utterance in the cache."""
        return frequency(self.open(manifest)[:6_615])

    def test_each_corpus_has_a_cache_of_its_own_and_leaves_no_other_file(self):
        self.open()
        self.open(replace(self.manifest, ids=("a", "b", "c")))
        self.assertEqual([path.suffix for path in self.cache.iterdir()], [".int16"] * 2)

    def test_cache_is_written_once(self):
        self.open()
        before = self.file().stat().st_ino
        self.open()
        self.assertEqual(self.file().stat().st_ino, before)

    def test_a_partial_or_truncated_cache_is_made_again(self):
        self.open()
        partial = self.file().rename(self.file().with_suffix(".partial"))
        partial.write_bytes(b"\1" * 100_000)
        for _ in range(2):
            self.assertEqual(len(self.open()), self.manifest.samples.sum())
            self.assertFalse(partial.exists())
            os.truncate(self.file(), 1_000)

    def test_failed_decoding_leaves_no_file_with_the_final_name(self):
        os.remove(self.manifest.paths[1])
        with self.assertRaisesRegex(DataError, "u1.flac cannot be read: No such file"):
            self.open()
        self.assertEqual(list(self.cache.iterdir()), [])

    def replace_first(self, frequency_hz: float, modified_s: float) -> None:
        """Replace the first file by one of the same length, so that the fingerprint is the same."""
        write_sound(Path(self.manifest.paths[0]), sine(frequency_hz, 0.3))
        # Times have a resolution of a few milliseconds.
        os.utime(self.manifest.paths[0], (modified_s, modified_s))

    def test_a_changed_file_is_decoded_again_even_if_it_is_older_than_the_cache(self):
        self.open()
        self.replace_first(1_000.0, 1)
        self.assertAlmostEqual(self.pitch(), 1_000.0, delta=2.0)
        os.utime(self.file(), (2**31, 2**31))  # the clock was set back meanwhile
        self.replace_first(2_000.0, 2)
        self.assertAlmostEqual(self.pitch(), 2_000.0, delta=2.0)

    def test_a_corpus_of_equal_lengths_in_another_folder_is_decoded_for_itself(self):
        self.open()
        (self.folder / "other").mkdir()
        path = self.folder / "other" / "u0.wav"
        write_sound(path, sine(1_000.0, 0.3))
        other = replace(self.manifest, paths=(str(path), *self.manifest.paths[1:]))
        self.assertEqual(other.fingerprint, self.manifest.fingerprint)
        os.utime(self.file(), (2**31, 2**31))
        self.assertAlmostEqual(self.pitch(other), 1_000.0, delta=2.0)

    def test_a_file_that_changes_while_it_is_decoded_is_named(self):
        def read_then_replace(path, samples, start):
            pcm = read_pcm(path, samples, start=start)
            # The other files are decoded at the same time.
            if path.endswith("u0.wav"):
                self.replace_first(1_000.0, 1)
            return pcm

        replaced = mock.patch("myxtts.batches.pcm_cache.read_pcm", read_then_replace)
        with replaced, self.assertRaisesRegex(DataError, "u0.wav has changed while it was decoded"):
            self.open()
        self.assertEqual(list(self.cache.iterdir()), [])

    def test_of_two_processes_that_need_a_cache_one_decodes_it(self):
        reads = []

        def count(path, samples, start):
            reads.append(path)
            return read_pcm(path, samples, start=start)

        with mock.patch("myxtts.batches.pcm_cache.read_pcm", count), ThreadPoolExecutor(3) as pool:
            caches = list(pool.map(lambda _: self.open(), range(3)))
        self.assertEqual(sorted(reads), sorted(self.manifest.paths))
        for cache in caches:
            np.testing.assert_array_equal(cache, caches[0])


class DamagedCacheTest(RowsCase):
    def test_a_damaged_utterance_is_read_from_its_file(self):
        manifest = write_corpus(self.folder / "corpus", [0.3, 0.3, 0.3])
        arguments = ([1, 0, 1, 2], [100, 0, 0, 50], [1_000, 6_615, 500, 0], 6_615)
        cache = self.folder / "cache"
        path = open_cache(manifest, cache, 2)
        content = bytearray(path.read_bytes())
        content[2 * (6_615 + 300)] ^= 1  # sample 300 of the second utterance
        path.write_bytes(content)
        read_rows = rows_from_cache(manifest, open_cache(manifest, cache, 2))
        with self.assertLogs("myxtts.batches", "WARNING") as logs:
            for _ in range(2):
                rows = self.rows(read_rows, *arguments)
                np.testing.assert_array_equal(rows, self.expected(manifest, *arguments))
        self.assertEqual(len(logs.output), 1)
        self.assertIn(f"{path} is damaged where it has {manifest.paths[1]}", logs.output[0])


class ReaderCase(FolderCase):
    DATA = DataConfig(batch_size=2, buckets=1, num_workers=2)

    def make(self, seconds, seed=1, **settings) -> tuple[Reader, list[PlannedBatch]]:
        """Write a corpus; return its reader, and the batches of its first epoch."""
        return self.reader(write_corpus(self.folder, seconds, **settings), seed)

    def reader(self, manifest, seed=1) -> tuple[Reader, list[PlannedBatch]]:
        corpus = planned_corpus(manifest, self.DATA)
        read_rows = rows_from_files(manifest, native_loading=True)
        reader = Reader(manifest, TTS_INPUTS, 6_400, self.DATA, read_rows)
        return reader, list(planned(corpus, Position(), seed=seed, epochs=1))


class WaveBatchesTest(ReaderCase):
    def test_elements_have_the_planned_arrays_unchanged(self):
        reader, batches = self.make([0.3, 0.4, 0.5], seed=3)
        pairs = list(reader.read(batches, DATA))
        self.assertEqual([plan for plan, _ in pairs], batches)
        for plan, wave in pairs:
            check_batch(wave, TTS_INPUTS, "reading")
            on_host = {name for name, value in wave.items() if isinstance(value, np.ndarray)}
            # A GPU would copy an uploaded int32 back for each function.
            self.assertEqual(on_host, {name for name, f in TTS_INPUTS.items() if f.on_host})
            require_device(DATA, wave.items())
            for name in wave.keys() & plan.arrays.keys():
                np.testing.assert_array_equal(wave[name], plan.arrays[name], err_msg=name)
            lengths = plan.arrays["samples"]
            for row, pcm, samples in zip(plan.rows, wave["pcm"].numpy(), lengths, strict=False):
                self.assertAlmostEqual(frequency(pcm[:samples]), pitch_of(row), delta=4.0)


class DeterministicReadingTest(ReaderCase):
    """Reading has no randomness, so that --deterministic leaves it parallel."""

    def setUp(self):
        super().setUp()
        tf.config.experimental.enable_op_determinism()
        self.addCleanup(disable_op_determinism)

    def test_batches_are_read_in_parallel(self):
        two_threads = threading.Barrier(2, timeout=120.0)

        def read_together(path, samples, start):
            two_threads.wait()
            return read_pcm(path, samples, start=start)

        with mock.patch("myxtts.batches.reading.read_pcm", read_together):
            reader, batches = self.make([0.3] * 8, suffixes=(".flac",))
            self.assertEqual([batch for batch, _ in reader.read(batches, DATA)], batches)

    def test_all_operations_that_read_are_stateless(self):
        for suffixes in ((".wav",), (".wav", ".flac")):
            manifest = write_corpus(self.folder, [0.3, 0.4], suffixes=suffixes)
            for read_rows in (
                rows_from_files(manifest, native_loading=True),
                rows_from_cache(manifest, open_cache(manifest, self.folder / "cache", 1)),
            ):
                types = operation_types(read_rows) - {"Placeholder"}
                actual = {name for name in types if op_def_registry.get(name).is_stateful}
                self.assertEqual(actual, set())

    def test_an_unreadable_file_is_an_error_at_its_batch(self):
        manifest = write_corpus(self.folder, [0.3] * 8, suffixes=(".wav", ".flac"))
        for row in (0, 1):
            os.replace(manifest.paths[row], self.folder / "away")
            reader, expected = self.reader(manifest)
            read = []
            message = rf"^utterance 'u{row}' .*cannot be read: No such file"
            with self.assertRaisesRegex(DataError, message):
                read += (batch for batch, _ in reader.read(expected, DATA))
            at_fault = expected[len(read)]
            self.assertIn(row, [*at_fault.rows, *at_fault.arrays["reference_row"]])
            self.assertFalse(any(row in batch.rows for batch in read))
            os.replace(self.folder / "away", manifest.paths[row])

    def test_a_file_whose_bytes_are_no_text_is_named(self):
        reader, batches = self.make([0.3] * 4)
        # Quoted by TensorFlow in its message.
        (self.folder / "u1.wav").write_bytes(b"\xe2" * 1_000)
        with self.assertRaisesRegex(DataError, "^utterance 'u1' .*cannot be read"):
            list(reader.read(batches, DATA))


class PlannedBatchesTest(FolderCase):
    def setUp(self):
        super().setUp()
        manifest = write_corpus(self.folder, [0.3 + 0.02 * i for i in range(11)])
        self.corpus = planned_corpus(manifest, DataConfig(batch_size=2, buckets=2), 0, 2)

    def planned(self, start, epochs, seed=1, mean_over="step"):
        return list(planned(self.corpus, start, seed=seed, epochs=epochs, mean_over=mean_over))

    def assert_same(self, batches, expected):
        self.assertEqual(len(batches), len(expected))
        for batch, expected_batch in zip(batches, expected, strict=True):
            for name, value in vars(batch).items():
                np.testing.assert_equal(value, getattr(expected_batch, name), name)

    def test_iteration_can_start_at_any_position(self):
        whole = self.planned(Position(), 3)
        for start in {planned.step.position for planned in whole}:
            rest = [planned for planned in whole if planned.step.position >= start]
            self.assert_same(self.planned(start, 3), rest)

    def test_iteration_ends_before_the_given_epoch_or_never(self):
        self.assertEqual(self.planned(Position(2, 0), 2), [])
        epochs = {planned.step.position.epoch for planned in self.planned(Position(), 2)}
        self.assertEqual(epochs, {0, 1})
        endless = planned(self.corpus, Position())
        positions = (planned.step.position for planned in endless)
        actual = next(position for position in positions if position.epoch == 50)
        self.assertEqual(actual, Position(50, 0))

    def test_another_seed_changes_only_the_references_and_seeds(self):
        first, second = self.planned(Position(), 1, seed=1), self.planned(Position(), 1, seed=2)
        changed = set()
        for planned, again in zip(first, second, strict=True):
            pairs = [(name, array, again.arrays[name]) for name, array in planned.arrays.items()]
            changed |= {name for name, array, other in pairs if np.any(array != other)}
        self.assertEqual(changed, {"reference_start", "seed"})

    def test_the_weight_of_an_utterance_in_the_mean_does_not_depend_on_its_batch(self):
        for mean_over in ("step", "epoch"):
            batches = self.planned(Position(), 1, mean_over=mean_over)
            arrays = [batch.arrays for batch in batches]
            share = sum(float((a["samples"] // 256).sum() / a["step_frames"]) for a in arrays)
            steps = len({batch.step.position for batch in batches})
            self.assertAlmostEqual(share, 1.0 if mean_over == "epoch" else steps, places=5)


class UnreadableTest(FolderCase):
    def test_an_error_unrelated_to_a_file_lists_the_files_of_the_batch(self):
        manifest = write_corpus(self.folder, [0.3, 0.31, 0.32], speakers=1)
        corpus = planned_corpus(manifest, DataConfig(batch_size=3, buckets=1))
        (batch,) = planned(corpus, Position(4, 0), epochs=5)
        error = str(unreadable(manifest, batch, ValueError("in C++")))
        for part in ("in C++", "epoch 5, step 1", *manifest.paths):
            self.assertIn(part, error)


class LoadCorporaTest(FolderCase):
    def load(self, accumulation=1, **settings):
        defaults = {"train_data": str(self.folder / "corpus.csv"), "text_frontend": "characters"}
        data = DataConfig(**defaults | settings)
        training = TrainingConfig(gradient_accumulation=accumulation)
        return load_corpora(Config(data=data, training=training), self.folder / "run", LengthRule())

    def write(self, utterances, **settings):
        """Write a corpus whose texts share their letters, so that any utterance can be held out."""
        write_corpus(self.folder, [0.3 + 0.01 * i for i in range(utterances)], **settings)
        lines = [f"u{i}.wav,ab,s{i % 2}" for i in range(utterances)]
        (self.folder / "corpus.csv").write_text("\n".join(["path,text,speaker", *lines]))

    def test_training_and_held_out_utterances_are_disjoint(self):
        self.write(20)
        train, validation, vocabulary = self.load(validation_fraction=0.2)
        ids = [set(corpus.manifest.ids) for corpus in (train, validation)]
        self.assertEqual((len(ids[0]), len(ids[1]), len(ids[0] | ids[1])), (16, 4, 20))
        self.assertEqual(vocabulary.speakers, ("s0", "s1"))
        actual = self.load(validation_fraction=0.2)[1].manifest.ids
        self.assertEqual(actual, validation.manifest.ids)

    def test_a_validation_corpus_with_longer_utterances_has_an_additional_bucket(self):
        self.write(6)
        write_corpus(self.folder / "long", [0.9, 0.3])
        (self.folder / "long" / "corpus.csv").write_text("path,text\nu0.wav,ab\nu1.wav,ba\n")
        longer = str(self.folder / "long" / "corpus.csv")
        train, validation, _ = self.load(val_data=longer, batch_size=2)
        self.assertEqual(len(validation.manifest), 2)
        self.assertEqual(validation.plan.bounds[:-1].tolist(), train.plan.bounds.tolist())
        self.assertGreaterEqual(validation.plan.bounds[-1], round(0.9 * SAMPLE_RATE_HZ))

    def test_accumulation_applies_to_training_only(self):
        self.write(20)
        train, validation, _ = self.load(accumulation=4, batch_size=2, validation_fraction=0.4)
        self.assertEqual((train.plan.steps_per_epoch, validation.plan.steps_per_epoch), (2, 4))

    def test_unusable_rows_are_listed_and_too_many_are_an_error(self):
        self.write(4)
        os.remove(self.folder / "u2.wav")
        with self.assertRaisesRegex(DataError, "1 missing file"):
            self.load()
        self.assertIn("u2.wav,missing file", (self.folder / "run" / "rejected.csv").read_text())
        with self.assertLogs("myxtts", "WARNING"):
            actual = len(self.load(max_rejected=0.5, validation_fraction=0.0)[0].manifest)
            self.assertEqual(actual, 3)

    def test_a_missing_corpus_creates_no_files(self):
        with self.assertRaisesRegex(DataError, "does not exist"):
            self.load(train_data=str(self.folder / "nowhere"))
        self.assertEqual(list(self.folder.iterdir()), [])
