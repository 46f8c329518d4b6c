"""Each setting of networks, features and steps reaches its argument: all values differ."""

import unittest
from unittest import mock

from tests import two_devices  # noqa: F401 - before TensorFlow starts

# isort: split

from myxtts.config import schema
from myxtts.config.schema import ASRConfig, Config, ModelConfig, TrainingConfig
from myxtts.corpus.manifest import Vocabulary
from myxtts.run import setup
from myxtts.tasks.asr.features import NO_MASKS
from myxtts.tasks.asr.task import ASRTask
from myxtts.tasks.tts.task import TTSTask
from myxtts.tasks.vocoder.task import VocoderTask
from myxtts.text.symbols import SymbolTable

VOCABULARY = Vocabulary(SymbolTable(("a", "b")), (), ("en",))
MIXED = TrainingConfig(precision="mixed_bfloat16")


class Networks(unittest.TestCase):
    def test_of_a_voice(self):
        given = {"dropout": 0.125, "reference_dropout": 0.25, "cfg_dropout": 0.375}
        given["gradient_checkpointing"] = True
        model = ModelConfig(model_size="tiny", segment_seconds=0.5, **given)
        config = Config(model=model, training=MIXED)
        taught = config.model_copy(update={"teacher": schema.TeacherConfig(teacher="runs/big")})
        expected = given | {"precision": "mixed_bfloat16", "segment_frames": 43, "taught": False}
        expected["contexts"] = False
        with mock.patch("myxtts.tasks.tts.task.build_xtts") as build:
            TTSTask().build(config, VOCABULARY)
            build.assert_called_once_with("tiny", 5, 1, **expected)
            TTSTask().build(taught, VOCABULARY)
            build.assert_called_with("tiny", 5, 1, **expected | {"taught": True})
            TTSTask().build(config, VOCABULARY, "mixed_float16")
            build.assert_called_with("tiny", 5, 1, precision="mixed_float16", contexts=False)
            TTSTask().build(config, VOCABULARY, weights=["xtts/aligner/context_1/norm/beta"])
            build.assert_called_with("tiny", 5, 1, **expected | {"contexts": True})

    def test_of_a_recogniser(self):
        model = ModelConfig(task="asr", model_size="small", dropout=0.125)
        config = Config(model=model, asr=ASRConfig(encoder="lmu", subsampling=2), training=MIXED)
        with mock.patch("myxtts.tasks.asr.task.build_asr") as build:
            ASRTask().build(config, VOCABULARY)
        settings = {"precision": "mixed_bfloat16", "dropout": 0.125}
        build.assert_called_once_with("small", 5, "lmu", 2, **settings)

    def test_of_a_vocoder(self):
        model = ModelConfig(task="vocoder", model_size="small", gradient_checkpointing=True)
        with mock.patch("myxtts.tasks.vocoder.task.build_vocoder") as build:
            VocoderTask().build(Config(model=model, training=MIXED), VOCABULARY)
        settings = {"refine_mel": False, "gradient_checkpointing": True}
        build.assert_called_once_with("small", "mixed_bfloat16", **settings)


class Features(unittest.TestCase):
    def test_of_spec_augment(self):
        asr = ASRConfig(time_masks=3, frequency_masks=4, frequency_mask_bands=7)
        for training, expected in ((True, asr), (False, NO_MASKS)):
            extractor = ASRTask().extractor(Config(asr=asr), training)
            self.assertEqual(extractor.produce.keywords["settings"], expected)


class Training(unittest.TestCase):
    def test_of_a_step(self):
        training = TrainingConfig(gradient_clip=2.5, gradient_accumulation=3, compile="xla")
        config = Config(data=schema.DataConfig(enable_static_shapes=True), training=training)
        with mock.patch.object(setup, "Step") as step:
            setup.make_step(config, mock.sentinel.state)
        expected = {"compile_xla": True, "can_measure_idle": False}
        step.assert_called_once_with(mock.sentinel.state, 2.5, 3, True, **expected)

    def test_kernels_are_deterministic_only_if_asked_for(self):
        for asked in (False, True):
            config = Config(training=TrainingConfig(deterministic=asked))
            determinism = mock.patch("tensorflow.config.experimental.enable_op_determinism")
            with mock.patch.object(setup.devices, "configure"), determinism as enable:
                setup.configure_devices(config)
            self.assertEqual(enable.called, asked)
