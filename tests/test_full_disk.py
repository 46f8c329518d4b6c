"""A full disk ends no run for metrics, samples and logs, and is not taken for full memory."""

import contextlib
import errno
import io
import logging
import os
from pathlib import Path
from unittest import mock

import numpy as np
import soundfile
import tensorflow as tf

from myxtts.audio.audio_file import write_wav
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.base.files import tolerate_full_disk
from myxtts.report.metrics import MetricsFile
from myxtts.report.reporter import Reporter, RunLog, TensorBoard
from tests.fixtures import FolderCase

FULL = Path("/dev/full")  # each write to it fails with ENOSPC


def full_events(*_):
    """Fail as TensorFlow does where an event file is on a full disk."""
    raise tf.errors.ResourceExhaustedError(
        None, None, "/runs/a/events.v2; No space left on device\n\tFailed to flush"
    )


def full_metrics():
    """Let a metrics.jsonl that is opened now be on a full disk."""
    return mock.patch("myxtts.report.metrics.open", lambda *_, **__: open(FULL, "a"), create=True)


class FullDiskTest(FolderCase):
    def test_a_report_that_cannot_be_written_is_logged_and_the_run_goes_on(self):
        with full_metrics():
            reporter = Reporter(self.folder / "metrics.jsonl", self.folder / "tensorboard", 0, 10)
        with (
            self.assertLogs("myxtts.base.files", "ERROR") as logs,
            mock.patch("tensorflow.summary.experimental.write_raw_pb", full_events),
            reporter,
        ):
            reporter.write(3, {"pause_s": 1.0})
        for line, (what, file) in zip(
            logs.output,
            (
                ("the metrics of step 3", "metrics.jsonl"),
                ("the scalars of step 3", "tensorboard"),
                ("the last metrics", "metrics.jsonl"),
            ),
            strict=True,
        ):
            path = self.folder / file
            self.assertIn(f"{what} cannot be written: {path}: No space left on device. Free", line)

    def test_a_worker_without_room_for_its_metrics_trains_on(self):
        with full_metrics():
            file = MetricsFile(self.folder / "metrics-1.jsonl", 0)
        with self.assertLogs("myxtts.base.files", "ERROR") as logs:
            file.write({"step": 3, "loss": 1.0})
            file.close()
        self.assertIn("the metrics of step 3 cannot be written", logs.output[0])

    def test_full_memory_is_no_full_disk(self):
        full = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
        with (
            mock.patch("tensorflow.summary.experimental.write_raw_pb", side_effect=full),
            self.assertRaises(tf.errors.ResourceExhaustedError),
        ):
            TensorBoard(self.folder).scalars(3, {"loss": 1.0})

    def test_a_folder_of_scalars_that_the_disk_refuses_is_named(self):
        for kind, number in (
            (tf.errors.UnknownError, errno.EIO),
            (tf.errors.PermissionDeniedError, errno.EACCES),
        ):
            refused = kind(None, None, f"/runs/a/events.v2; {os.strerror(number)}")
            with (
                mock.patch("tensorflow.summary.experimental.write_raw_pb", side_effect=refused),
                self.assertRaises(OSError) as raised,
            ):
                TensorBoard(self.folder).scalars(3, {"loss": 1.0})
            actual = (raised.exception.errno, raised.exception.filename)
            self.assertEqual(actual, (number, str(self.folder)))

    def test_only_a_full_disk_lets_a_run_go_on(self):
        with self.assertRaises(PermissionError), tolerate_full_disk("the samples"):
            raise PermissionError(errno.EACCES, "Permission denied", "a.png")

    def test_a_sound_on_a_full_disk_is_an_error_that_names_the_file(self):
        with self.assertRaises(OSError) as raised:
            write_wav(FULL, np.zeros(10_000, np.float32))
        actual = (raised.exception.errno, raised.exception.filename)
        self.assertEqual(actual, (errno.ENOSPC, str(FULL)))

    def test_a_sound_has_the_bytes_that_soundfile_writes(self):
        wave, expected = np.sin(np.arange(999, dtype=np.float32)), self.folder / "expected.wav"
        write_wav(self.folder / "sound.wav", wave)
        soundfile.write(expected, wave, SAMPLE_RATE_HZ, subtype="PCM_16")
        self.assertEqual((self.folder / "sound.wav").read_bytes(), expected.read_bytes())

    def test_a_log_that_cannot_be_written_prints_no_traceback(self):
        with contextlib.redirect_stderr(io.StringIO()) as errors, RunLog() as run_log:
            run_log.open(FULL)
            logging.getLogger("myxtts.tests").error("step")
        self.assertNotIn("Traceback", errors.getvalue())
