"""Corpora on a real S3 server: `rclone serve s3`, with latency and faults."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path
from unittest import mock

from myxtts.base import members
from myxtts.base.errors import DataError
from myxtts.extras.store import pack_command as pack
from tests.engines.s3_server import BUCKET, S3Server
from tests.fixtures import entered, temporary_folder

ROOT = Path(__file__).parents[2]
STEPS = 8
FLAGS = f"""
--task asr --model-size tiny --text-frontend characters --batch-size 2 --max-steps {STEPS}
--log-every 1 --checkpoint-every 2 --validate-every 0 --sample-every 0 --keep-checkpoints 1
""".split()
CORPUS = f"s3://{BUCKET}/corpus"
LATENCY_S = 0.03
# A step is short on an idle machine; kills must come before the last.
STEP_DEADLINE_S = 1200.0


class ServerCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup)
        cls.server = S3Server(cls.folder / "server")
        cls.addClassCleanup(cls.server.close)
        machine = {**cls.server.environment, "XDG_CACHE_HOME": str(cls.folder / "first")}
        entered(cls.addClassCleanup, mock.patch.dict(os.environ, machine))
        members.store_of.cache_clear()
        corpus = cls.folder / "corpus"
        make = [sys.executable, "-m", "myxtts", "corpus", "--utterances", "40", "--out", corpus]
        subprocess.run(make, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        flags = "--train-data", str(corpus), "--text-frontend", "characters", "--out", CORPUS
        with mock.patch("myxtts.extras.store.packing.SHARD_BYTES", 1_000_000):
            pack.main(flags)


class TrainingTest(ServerCase):
    def start(self, *flags: str, **environ: str) -> subprocess.Popen:
        command = [sys.executable, "train_main.py", *FLAGS, *flags]
        return subprocess.Popen(command, cwd=ROOT, env=os.environ | environ)

    def losses(self, metrics: Path) -> dict[int, float]:
        lines = map(json.loads, metrics.read_text().splitlines())
        return {line["step"]: line["loss"] for line in lines if "loss" in line}

    def test_a_killed_run_goes_on_with_the_losses_of_one_from_files(self):
        local = "--train-data", str(self.folder / "corpus"), "--runs-dir", str(self.folder / "runs")
        self.assertEqual(self.start(*local, "--run", "files").wait(), 0)
        expected = self.losses(self.folder / "runs/files/metrics.jsonl")
        self.assertEqual([*expected], [*range(1, STEPS + 1)])

        remote = "--train-data", CORPUS, *local[2:], "--run", "voice"
        run = self.folder / "runs/voice"
        self.server.delay_s = LATENCY_S
        self.addCleanup(setattr, self.server, "delay_s", 0.0)
        process = self.start(*remote)
        until_s = time.monotonic() + STEP_DEADLINE_S
        while not [*run.glob("checkpoints/step-*/state.json")]:
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), until_s)
            time.sleep(0.02)
        # The server is away for a while, and then the machine for ever.
        self.server.stop()
        time.sleep(2.0)
        self.server.start()
        process.send_signal(signal.SIGKILL)
        process.wait()

        other = {"XDG_CACHE_HOME": str(self.folder / "second")}
        self.assertEqual(self.start(*remote, "--resume", **other).wait(), 0)
        found = self.losses(run / "metrics.jsonl")
        self.assertEqual(found, expected)
        for name in (
            "report.html",
            "log.txt",
            "config.yaml",
            f"checkpoints/step-{STEPS:06d}/state.json",
        ):
            self.assertTrue((run / name).exists(), name)
        states = (path / "checkpoints" for path in (run, self.folder / "runs/files"))
        last = (path / f"step-{STEPS:06d}" / "model.safetensors" for path in states)
        first, second = (path.read_bytes() for path in last)
        self.assertEqual(first, second)


class FaultTest(ServerCase):
    def setUp(self):
        members.store_of.cache_clear()
        self.addCleanup(members.store_of.cache_clear)

    def test_wrong_credentials_are_named(self):
        with mock.patch.dict(os.environ, AWS_SECRET_ACCESS_KEY="wrong"):
            for use in (lambda store: store.list(), lambda store: store.version("index.arrow")):
                with self.assertRaisesRegex(DataError, f"{CORPUS}/.* 403 .* AWS_SECRET_ACCESS_KEY"):
                    use(members.store_of(CORPUS))

    def test_a_server_that_comes_back_is_waited_for_and_one_that_is_gone_is_named(self):
        store = members.store_of(CORPUS)
        expected = store.read("index.arrow", 0, 100)
        self.server.stop()
        self.addCleanup(self.server.start)
        with mock.patch("myxtts.extras.store.stores.RETRY_S", 1.0):
            members.store_of.cache_clear()
            impatient = members.store_of(CORPUS)
        with self.assertRaisesRegex(DataError, "index.arrow cannot be used: .* Check the name"):
            impatient.read("index.arrow", 0, 100)
        self.doCleanups()
        self.assertEqual(store.read("index.arrow", 0, 100), expected)

    def test_half_an_upload_is_no_file(self):
        path = self.folder / "large"
        path.write_bytes(os.urandom(20_000_000))
        with mock.patch("myxtts.extras.store.stores.RETRY_S", 1.0):
            store = members.store_of(f"s3://{BUCKET}/uploads")
        self.server.cut_uploads = True
        self.addCleanup(setattr, self.server, "cut_uploads", False)
        with self.assertRaises(DataError):
            store.put("large", path)
        self.assertIsNone(store.version("large"))
        self.server.cut_uploads = False
        store.put("large", path)
        self.assertEqual(store.read("large", 19_999_000, 1000), path.read_bytes()[-1000:])
        shutil.rmtree(self.folder / "server" / BUCKET / "uploads")
