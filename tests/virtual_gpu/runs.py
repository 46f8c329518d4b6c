"""What runs place where, and what they hand over, checked on four virtual GPUs.

Each class has a process of its own, since a run configures the devices of its process:

    python -m tests.virtual_gpu --gpus 4 --chaos 1 -- -m unittest tests.virtual_gpu.runs.Dual

`tests/robustness/device_mutants.py` plants defects that they find.
"""

import contextlib
import io
import os
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar
from unittest import mock

import numpy as np
import tensorflow as tf

from fakes.threads import mixed_up
from fakes.toy_models import toy_models
from myxtts.audio.format import frame_count
from myxtts.base.console import report_errors
from myxtts.base.tf_internals import device_memory_mib
from myxtts.batches.pipeline import Pipeline
from myxtts.batches.plan import Pass
from myxtts.commands import train
from myxtts.config.schema import PlacementConfig
from myxtts.devicefeed.upload import Source
from myxtts.placement import devices
from myxtts.placement.settings import plan_routes
from myxtts.run.observation import Validation
from myxtts.run.setup import TrainingSetup
from myxtts.run.step import Step
from tests.fixtures import temporary_folder
from tests.sine_corpus import write_corpus

SECONDS = tuple(0.4 + 0.03 * i for i in range(13))  # so that frames tell the utterance
STEPS = 6
SYSTEM_MIB = 255  # what TensorFlow leaves of a small GPU to the system
MEMORY_MIB = (500, 600, 700, 800)


def setUpModule():
    os.environ["VIRTUAL_GPU_MEMORY_MIB"] = " ".join(map(str, MEMORY_MIB))


class Recorded:
    """What a run of the toy did. `code` and `output` are those of the program.

    Attributes:
        entered: frames of all batches that entered a step, in their order.
        tensors: on the device of each replica, by name: what the last step got.
        computing: devices of the operations of the last step.
        observers: devices of all validations.
    """

    def __init__(self, case: type[unittest.TestCase], *flags: str):
        folder = temporary_folder(case.addClassCleanup)
        write_corpus(folder / "corpus", SECONDS)
        argv = f"--train-data {folder}/corpus/corpus.csv --run run --runs-dir {folder}/runs"
        argv += f" --model-size tiny --text-frontend characters --buckets 2 --max-steps {STEPS}"
        argv += " --batch-size 2 --reference-seconds 0.5 --log-every 1 --warmup-steps 2"
        argv += " --validation-fraction 0.07 --validate-every 3 --sample-every 0"
        self.entered: list[np.ndarray] = []
        self.tensors: list[dict[str, tf.Tensor]] = []
        self.observers: list[str] = []
        out = io.StringIO()
        with self._recording(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            self.code = report_errors(lambda: train.main([*argv.split(), *flags]))
        self.output = out.getvalue()

    @contextlib.contextmanager
    def _recording(self):
        call, evaluate, make = Step.__call__, Validation.evaluate, TrainingSetup.training_pipeline

        def recorded_call(step, microbatches, number, rates, stop):
            taken = list(microbatches)
            for batches in taken:
                self.entered += [batch["frames"].numpy() for batch in batches]
                for batch in batches:
                    frames = batch["frames"].numpy()
                    for mel, length in zip(batch["mel"].numpy(), frames, strict=True):
                        assert np.isfinite(mel[:length]).all()
            outcome = call(step, taken, number, rates, stop)
            self.tensors = [dict(batch) for batch in taken[-1]]
            controls = step._controls.of_step(number + 1, rates, stop)
            self.tensors[0] |= controls | {"outcome": outcome}
            self.computing = {
                operation.device[-5:]
                for function in step.functions(taken[-1])
                for operation in function.graph.get_operations()
                if "GPU" in operation.device
            }
            return outcome

        def recorded_evaluate(validation, *arguments):
            self.observers.append(validation._device)
            return evaluate(validation, *arguments)

        def recorded_pipeline(setup, *arguments, **named):
            self.pipeline = make(setup, *arguments, **named)
            self.manifest = setup.corpora.training.manifest
            return self.pipeline

        with (
            toy_models(),
            mock.patch.object(Step, "__call__", recorded_call),
            mock.patch.object(Validation, "evaluate", recorded_evaluate),
            mock.patch.object(TrainingSetup, "training_pipeline", recorded_pipeline),
        ):
            yield

    def planned(self, replicas: int) -> list[np.ndarray]:
        """Return the frames of the batches of the plan, in the order of `entered`."""
        plan_pass = self.pipeline.producers[0].read.plan_pass
        planned = plan_pass(Pass(), replicas=range(replicas))
        frames = []
        for entered in self.entered:
            of_rows = frame_count(self.manifest.samples[next(planned).rows])
            # A batch with few utterances has empty rows.
            frames.append(np.pad(of_rows, (0, len(entered) - len(of_rows))))
        return frames


class RunCase(unittest.TestCase):
    """A run that trains on `models`, physical GPUs, and makes batches on `producers`."""

    flags: ClassVar[str]
    models: ClassVar[tuple[int, ...]]
    producers: ClassVar[tuple[int, ...]]

    @classmethod
    def setUpClass(cls):
        cls.run_ = Recorded(cls, *cls.flags.split())
        assert cls.run_.code == 0, cls.run_.output.splitlines()[-1]

    def assert_physical(self, device: str, physical: int):
        self.assertEqual(device_memory_mib(device), MEMORY_MIB[physical] - SYSTEM_MIB)

    def test_steps_get_the_batches_of_the_plan_in_its_order(self):
        planned = self.run_.planned(len(self.models))
        self.assertGreaterEqual(len(planned), STEPS)
        for number, pair in enumerate(zip(self.run_.entered, planned, strict=True)):
            np.testing.assert_array_equal(*pair, err_msg=f"batch {number}")

    def test_roles_have_the_gpus_that_flags_name(self):
        for tensors, physical in zip(self.run_.tensors, self.models, strict=True):
            self.assert_physical("/" + tensors["mel"].backing_device[-5:], physical)
        for producer, physical in zip(self.run_.pipeline.producers, self.producers, strict=True):
            self.assert_physical(producer.device, physical)

    def test_a_step_gets_nothing_from_the_host(self):
        for tensors in self.run_.tensors:
            places = {
                name: value.backing_device[-5:]
                for name, value in tensors.items()
                if value.dtype != tf.int32
            }
            self.assertEqual(set(places.values()), {places["mel"]}, places)

    def test_a_step_computes_on_the_gpus_that_train(self):
        places = {tensors["mel"].backing_device[-5:] for tensors in self.run_.tensors}
        self.assertEqual(self.run_.computing, places)

    def test_the_observer_is_no_gpu_that_trains(self):
        self.assertEqual(set(self.run_.observers), {self.run_.pipeline.producers[0].device})


class Dual(RunCase):
    flags = "--data-gpu 3 --model-gpu 1 --gradient-accumulation 2"
    models, producers = (1,), (3,)


class Replicated(RunCase):
    flags = "--data-gpus 3 0 --model-gpus 2 1"
    models, producers = (2, 1), (3, 0)


class Limits(unittest.TestCase):
    def test_each_role_has_its_own_limit(self):
        requested = PlacementConfig(
            data_gpu=3, model_gpu=1, data_gpu_memory=1024, model_gpu_memory=2048
        )
        devices.configure(plan_routes(requested, devices.gpu_count()))
        limits = []
        for gpu in tf.config.list_physical_devices("GPU"):
            configured = tf.config.get_logical_device_configuration(gpu) or []
            limits += [(gpu.name[-1], part.memory_limit) for part in configured]
        self.assertEqual(limits, [("1", 2048), ("3", 1024)])


class Threads(unittest.TestCase):
    def test_operations_of_threads_get_their_own_results(self):
        with mock.patch("myxtts.batches.pipeline.make_reader"):
            Pipeline(mock.Mock(), [], mock.Mock(), mock.MagicMock(), seed=0, cache_folder=None)
        self.assertEqual(mixed_up("/GPU:0", 50), 0)

    def test_elements_of_a_source_are_in_order_whoever_asks(self):
        source = Source({"number": tf.TensorSpec([], tf.int64)})
        source.begin({"number": np.int64(number)} for number in slow_count())
        threads = 8
        barrier = threading.Barrier(threads)

        def ask(first: int) -> bool:
            barrier.wait()
            numbers = range(first, 400, threads)
            return all(source._columns(np.int64(each))[0] == each for each in numbers)

        with ThreadPoolExecutor(threads) as pool:
            self.assertTrue(all(pool.map(ask, range(threads))))


def slow_count():
    """Yield 0, 1, 2, … and let other threads run meanwhile."""
    pause = threading.Event()
    number = 0
    while True:
        pause.wait(1e-5)
        yield number
        number += 1


if __name__ == "__main__":
    unittest.main()
