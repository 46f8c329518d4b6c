"""Of several starts of one run, one trains; the others end before they read or write anything."""

import contextlib
import errno
import io
import os
import subprocess
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from unittest import mock

from myxtts.base.console import report_errors
from myxtts.base.errors import ConfigError, DataError
from myxtts.base.files import write_whole
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.config.load import load
from myxtts.corpus.demo_corpus import make_demo_corpus
from myxtts.run.page import train
from tests.fixtures import FolderCase, temporary_folder


class RunLockTest(unittest.TestCase):
    def setUp(self):
        self.runs = temporary_folder(self.addCleanup) / "runs"

    def second_start(self, **settings) -> int:
        """Start a run, and once more before it has read its corpus; return how many read it."""
        config = load(None, {"run": "a", "runs_dir": str(self.runs), **settings})
        starts = []

        def resolve_start(*_):
            starts.append(1)
            if len(starts) == 1:
                with self.assertRaisesRegex(
                    ConfigError, "another process is training it in .*/runs/a"
                ):
                    train(config)
            raise DataError("no corpus")

        with (
            mock.patch("myxtts.run.page.resolve_start", resolve_start),
            self.assertRaisesRegex(DataError, "no corpus"),
        ):
            train(config)
        return len(starts)

    def test_a_start_while_another_one_prepares_its_corpus_reads_nothing(self):
        self.assertEqual(self.second_start(), 1)
        self.assertFalse((self.runs / "a").exists())  # nothing was written to it

    def test_a_file_system_without_locks_is_an_error_with_advice(self):
        refused = mock.patch(
            "myxtts.base.files.fcntl.flock", side_effect=OSError(errno.ENOLCK, "No locks available")
        )
        config, error = load(None, {"run": "a", "runs_dir": str(self.runs)}), io.StringIO()
        with refused, contextlib.redirect_stderr(error):
            self.assertEqual(report_errors(lambda: train(config)), 2)
        self.assertIn(f"{self.runs}/a/.lock cannot be locked: No locks available", error.getvalue())
        self.assertIn("or give --no-lock", error.getvalue())

    def test_without_locks_a_run_starts_where_the_file_system_has_none(self):
        unlocked = load(None, {"run": "a", "runs_dir": str(self.runs), "lock": False})
        with (
            mock.patch("myxtts.base.files.fcntl.flock", side_effect=OSError(errno.ENOSYS, "none")),
            mock.patch("myxtts.run.page.resolve_start", side_effect=DataError("no corpus")),
            self.assertRaisesRegex(DataError, "no corpus"),
        ):
            train(unlocked)
        with self.assertRaisesRegex(ConfigError, "cache_dataset needs a file system with locks"):
            load(None, {"lock": False, "cache_dataset": True})

    def test_a_second_resume_leaves_checkpoints_alone_that_the_first_one_is_rewriting(self):
        former = self.runs / "a" / "checkpoints" / ".former-step-000010"
        former.mkdir(parents=True)
        self.assertEqual(self.second_start(resume=True), 1)
        self.assertTrue(former.exists())

    def test_of_many_starts_one_at_a_time_has_the_folder(self):
        folder, inside, most = RunFolder(self.runs / "a"), [], []

        def start(_):
            with suppress(ConfigError), folder.locked():
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.0005)  # lets other threads run
                inside.pop()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(start, range(400)))
        self.assertEqual(max(most), 1)
        self.assertFalse(folder.path.exists())

    def test_a_run_removes_what_killed_processes_left_of_files(self):
        (self.runs / "a").mkdir(parents=True)
        ended = subprocess.Popen(["true"])
        ended.wait()
        (self.runs / "a" / f".metrics.jsonl.{ended.pid}-7.partial").write_text("half")
        (self.runs / "a" / "config.yaml").touch()
        with RunFolder(self.runs / "a").locked():
            names = {path.name for path in (self.runs / "a").iterdir()}
            self.assertEqual(names, {".lock", "config.yaml"})

    def test_a_run_keeps_files_that_a_live_process_is_writing(self):
        (self.runs / "a").mkdir(parents=True)
        written = self.runs / "a" / f".speech.wav.{os.getppid()}-7.partial"
        written.write_text("half")
        with RunFolder(self.runs / "a").locked():
            self.assertTrue(written.exists())


class UniqueNamesTest(FolderCase):
    def test_a_file_may_be_written_by_two_at_once(self):
        path, fsync, written = self.folder / "manifest.npz", os.fsync, []

        def write_meanwhile(descriptor):
            fsync(descriptor)
            if not written:
                written.append(1)
                other = threading.Thread(target=write_whole, args=(path, b"other"))
                other.start()
                other.join()

        with mock.patch("os.fsync", write_meanwhile):
            write_whole(path, b"first")
        self.assertEqual(path.read_bytes(), b"first")
        self.assertEqual(list(self.folder.iterdir()), [path])

    def test_a_demo_corpus_that_another_process_makes_meanwhile_is_taken(self):
        arguments = {"utterances": 1, "languages": ["en"], "speakers": 1, "seed": 0}
        others = [lambda: make_demo_corpus(self.folder / "demo", **arguments)]
        progress = lambda: others.pop()() if others else None  # noqa: E731
        self.assertFalse(make_demo_corpus(self.folder / "demo", **arguments, progress=progress))
        self.assertEqual(len(list((self.folder / "demo" / "wavs").iterdir())), 1)
