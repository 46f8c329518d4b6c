"""The voice `base`: what its corpus never has and how its parts are joined, and its aligner."""

import contextlib
import csv
import io
import json
import re
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import tensorflow as tf

from myxtts.config.schema import AugmentationConfig, Config
from myxtts.tasks.layers import MEL_MEAN, MEL_STD, normalised_mel
from myxtts.tasks.tts.aligner import Aligner
from tests.fixtures import FolderCase, make_record
from tests.tiny import build_model, small_models
from utilities.base import aligner, corpus

KEPT_FOR_JUDGING = "af_kore am_fenrir bf_isabella bm_lewis if_sara em_alex".split()


class BaseCorpusTest(FolderCase):
    def test_no_voice_that_is_kept_for_judging_speaks(self):
        for part in corpus.PARTS.values():
            voices = re.findall(r"[a-z]{2}_\w+", part.voices)
            self.assertFalse(set(voices) & {*KEPT_FOR_JUDGING}, part.voices)

    def test_parts_are_joined_with_the_man_and_all_their_speakers(self):
        people = self.folder / "people"
        (people / "wavs").mkdir(parents=True)
        for table, ids in (("metadata_train.csv", "ab"), ("metadata_eval.csv", "c")):
            rows = [f"wavs/{id}.wav|Text {id}.|nsh|ru" for id in ids]
            (people / table).write_text("\n".join(["path|text|speaker|language", *rows]))
        for id in "abc":
            (people / f"wavs/{id}.wav").write_bytes(id.encode())
        (self.folder / "texts.txt").write_text("\n".join(map(str, range(6000))))
        out, spoken = self.folder / "out", {}

        def make(folder, options):
            folder.mkdir(parents=True)
            spoken[folder.name] = options
            (folder / "metadata.csv").write_text(
                f"path,text,speaker,language\nwavs/x.wav,A text.,{folder.name},en-us\n"
            )
            return {"speakers": [{"name": folder.name}], "texts": {"from": "x"}}

        words = ["corpus.py", "kokoro-js-1.2.1.tgz", "--english", str(self.folder / "texts.txt")]
        words += ["--people", str(people), "--out", str(out)]
        with (
            mock.patch.object(corpus, "make_spoken_corpus", make),
            mock.patch.object(corpus, "use_sample_rate"),
            mock.patch.object(sys, "argv", words),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            corpus.main()
        with open(out / "metadata.csv", newline="") as file:
            rows = [*csv.DictReader(file)]
        self.assertEqual(rows[-3]["path"], "pt/wavs/x.wav")
        self.assertEqual([row["text"] for row in rows[-2:]], ["Text a.", "Text b."])
        self.assertEqual((out / rows[-1]["path"]).read_bytes(), b"b")
        names = [of["name"] for of in json.loads((out / "corpus.json").read_text())["speakers"]]
        self.assertEqual(names, [*corpus.PARTS, "nsh"])
        self.assertEqual(spoken["woman"].voices, ["woman=hibari"])
        self.assertEqual(spoken["man"].voices, ["man=kokoro-js-1.2.1.tgz#am_puck"])
        self.assertIn("kokoro-js-1.2.1.tgz#bm_george", spoken["british"].voices)
        lines = Path(spoken["american"].texts).read_text().splitlines()
        self.assertEqual((lines[0], len(lines)), ("4000", 420))
        self.assertEqual(len(Path(spoken["es"].texts).read_text("utf-8").splitlines()), 50)


class AlignerTest(unittest.TestCase):
    def test_the_direct_sound_keeps_its_time_and_what_lies_behind_a_wave_stays_silent(self):
        waves = np.zeros([6, 40_000], np.float32)
        waves[:, 12_000] = 0.9
        samples = tf.fill([6], 30_000)
        silence = tf.zeros([aligner.TUNES, 40_000])
        heard = aligner.worsened(waves, samples, silence, tf.constant([3, 4])).numpy()
        self.assertEqual(np.abs(heard).argmax(axis=1).tolist(), [12_000] * 6)
        self.assertGreater(np.abs(heard[:, 12_500:30_000]).max(), 0.01)
        self.assertEqual(np.abs(heard[:, 30_000:]).max(), 0.0)

    def test_music_is_below_the_speech_and_noise_is_heard(self):
        waves = np.random.default_rng(0).normal(size=(16, 22_050), scale=0.1).astype(np.float32)
        samples, seed = tf.fill([16], 22_050), tf.constant([5, 6])
        hum = np.sin(np.arange(22_050) * 0.02)[None].repeat(aligner.TUNES, axis=0)
        nothing = AugmentationConfig()
        with (
            mock.patch.object(aligner, "ROOM", nothing),
            mock.patch.object(aligner, "NOISE", nothing),
            mock.patch.object(aligner, "ECHOED", 0.0),
        ):
            added = aligner.worsened(waves, samples, tf.constant(hum * 2**0.5, tf.float32), seed)
        levels_db = 20 * np.log10(np.std(added - waves, axis=1) / 0.1 + 1e-9)
        with_music = levels_db > -100
        self.assertTrue(4 <= with_music.sum() <= 14, levels_db)
        self.assertGreater(levels_db[with_music].min(), -20.5)
        self.assertLess(levels_db[with_music].max(), -5.5)

    def test_a_voice_whose_aligner_was_not_taught_is_copied_with_what_is_to_learn(self):
        network = build_model()
        settings = Config(model={"model_size": "tiny"})
        symbols = tuple("abcdefghij")  # SYMBOLS with the special ones
        record = make_record(symbols=symbols, languages=("en", "ru"), settings=settings)
        with small_models():
            copy = aligner.with_contexts(SimpleNamespace(record=record), network, "/CPU:0")
        values = {v.path: v.numpy() for v in copy.variables}
        added = {path for path in values if "context" in path}
        self.assertEqual(len(added), 12)
        np.testing.assert_equal(
            {path: values[path] for path in values.keys() - added},
            {v.path: v.numpy() for v in network.variables},
        )

    def test_the_aligner_learns_the_path_of_the_recording_in_what_is_heard(self):
        random = np.random.default_rng(1)
        sounds = random.normal(size=(9, 80)).astype(np.float32)
        tokens = np.stack([1 + random.permutation(8)[:5] for _ in range(8)]).astype(np.int32)
        path = np.repeat(np.arange(5), 8)[None].repeat(8, axis=0)
        heard = sounds[np.take_along_axis(tokens, path, axis=1)]
        batch = {
            "heard": tf.constant(heard * MEL_STD + MEL_MEAN),
            "tokens": tf.constant(tokens),
            "token_count": tf.fill([8], 5),
        }
        voice = SimpleNamespace(align=lambda batch: tf.constant(path))
        learner = Aligner(9, contexts=True)
        mel, real = normalised_mel(batch["heard"]), tf.ones([8, 40])

        def on_path():
            scores, _ = learner(mel, real, batch["tokens"], batch["token_count"])
            return float(tf.reduce_mean(tf.gather(scores, path, batch_dims=2)))

        before = on_path()
        kernels = [context.out.kernel for context in learner.contexts]
        with contextlib.redirect_stdout(io.StringIO()) as said:
            aligner.learn([batch] * 40, learner, voice, 40)
        self.assertGreater(on_path(), before / 2)
        self.assertTrue(all(np.abs(kernel.numpy()).max() > 0.0 for kernel in kernels))
        self.assertEqual(said.getvalue().count("| path"), 40 // aligner.REPORTED)
