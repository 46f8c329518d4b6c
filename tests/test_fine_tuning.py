"""Runs with --init-from: inherited and new weights, frozen components, rejected combinations."""

import io
import shutil
import unittest
from collections.abc import Sequence
from contextlib import redirect_stdout
from itertools import chain
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from myxtts.base.errors import CheckpointError, ConfigError
from myxtts.base.names import base_language
from myxtts.checkpoints.files import Ancestor, Checkpoint, digest_of, latest, read_record
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.commands import text
from myxtts.config.flags import SETTINGS
from myxtts.config.load import load
from myxtts.corpus.manifest import Vocabulary
from myxtts.extras.jobs.merge import fresh_record
from myxtts.run.optimizer import make_optimizer
from myxtts.run.state import TrainingState
from myxtts.run.step import Step
from myxtts.run.warm_start import Pretrained, extend_rows, load_pretrained, read_pretrained
from myxtts.tasks.contract import empty_batch
from myxtts.tasks.registry import task_named
from myxtts.tasks.tts.contract import TTS_FEATURES
from myxtts.tasks.tts.network import build_xtts
from myxtts.text.symbols import FIRST_SYMBOL_ID, SymbolTable
from tests import tiny
from tests.fixtures import make_record, replace_arrays
from tests.sine_corpus import sine, write_sound
from tests.tiny import (
    SYMBOLS,
    Finished,
    Workspace,
    arrays_of,
    build_model,
    save_checkpoint,
    small_models,
    training_state,
)
from tests.two_devices import MODEL

ROOT = Path(__file__).parents[1]
# The symbols of `build_model` without the 3 special ids.
LETTERS = tuple("abcdefghijklmnop"[: SYMBOLS - 3])


class ComponentModel(keras.Model):
    """A model with only what fine-tuning needs: two embeddings, components and a loss."""

    LOSS_NAMES = ("mel",)
    BATCH_FIELDS = TTS_FEATURES

    def __init__(self, symbols: int, languages: int):
        super().__init__(name="tiny", autocast=False)
        self.symbol_embedding = keras.layers.Embedding(symbols, 80, name="symbol_embedding")
        self.language_embedding = keras.layers.Embedding(languages, 80, name="language_embedding")
        self.decoder = keras.layers.Dense(80, name="decoder")

    def vocabulary_variables(self) -> dict[str, tuple[str, int]]:
        named = {"symbols": self.symbol_embedding, "languages": self.language_embedding}
        return {layer.embeddings.path: (name, 0) for name, layer in named.items()}

    def component_layers(self) -> dict[str, list[keras.layers.Layer]]:
        vocabulary = [self.symbol_embedding, self.language_embedding]
        named = {"text_encoder": vocabulary, "decoder": [self.decoder]}
        return {**named, "prosody": [], "reference_encoder": []}

    def call(self, batch, training=False):
        longest = tf.shape(batch["tokens"])[1]
        real = tf.sequence_mask(batch["token_count"], longest, tf.float32)[:, :, None]
        text = tf.reduce_sum(self.symbol_embedding(batch["tokens"]) * real, axis=1)
        frame = self.decoder(text + self.language_embedding(batch["language"]))[:, None, :]
        return {"mel": tf.reduce_sum(tf.square(frame - batch["mel"])) / batch["step_frames"]}, {}


def build_component_model(size: str, symbols: int, languages: int, **settings) -> ComponentModel:
    """Replace `build_xtts`."""
    model = ComponentModel(symbols, languages)
    model(empty_batch(TTS_FEATURES))
    return model


def vocabulary(symbols: Sequence[str], languages: Sequence[str]) -> Vocabulary:
    return Vocabulary(SymbolTable(tuple(symbols)), (), tuple(languages))


workspace: Workspace
tuned: Finished


def setUpModule():
    """A run `base` with two tables, and a run `tuned` on another language with other letters."""
    global workspace, tuned
    models = mock.patch("myxtts.tasks.tts.task.build_xtts", build_component_model)
    models.start()
    unittest.addModuleCleanup(models.stop)
    workspace = Workspace.temporary(unittest.addModuleCleanup)
    finished = workspace.train("base", "--max-steps 4 --validate-every 2")
    assert finished.code == 0, finished
    folder = workspace.folder / "georgian"
    folder.mkdir()
    lines = ["path,text,speaker,language"]
    for i in range(9):
        write_sound(folder / f"k{i}.wav", sine(200.0 + 30 * i, 0.5))
        lines.append(f"k{i}.wav,{'აბ'[: i % 2 + 1]}b{'ca'[i % 2]},s{i % 2},ka")
    (folder / "corpus.csv").write_text("\n".join(lines), encoding="utf-8")
    tuned = tune("tuned")


def tune(name: str, *flags: str, base: Path | None = None) -> Finished:
    base = base or workspace.run_dir("base")
    fixed = f"--train-data {workspace.folder}/georgian/corpus.csv --init-from {base}"
    return workspace.train(name, fixed, "--max-steps 6 --checkpoint-every 2", *flags)


class Runs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.workspace, cls.base = workspace, workspace.run_dir("base")
        cls.corpus = workspace.folder / "georgian/corpus.csv"

    def rejection(self, name: str, *flags: str, base: Path | None = None) -> str:
        finished = tune(name, *flags, base=base)
        self.assertEqual(finished.code, 2, finished)
        self.assertNotIn("Traceback", finished.err)
        return finished.err


class Started(Runs):
    def test_keeps_pretrained_rows_and_appends_new_ones(self):
        self.assertEqual((tuned.code, tuned.err), (0, ""))
        base = read_pretrained(self.base, self.workspace.folder)
        kept = "symbols 8 kept, 2 new (ა, ბ), languages 1 kept, 1 new (ka)"
        step = base.run.record.step
        self.assertIn(f"start          {self.base} step {step}: {kept}\n", tuned.out)
        # 10 symbols and 3 special ids.
        self.assertIn("2 speakers, 13 symbols, languages en ka\n", tuned.out)
        record = read_record(latest(self.workspace.run_dir("tuned") / "checkpoints"))
        names = (record.symbols, record.languages, record.speakers)
        self.assertEqual(names, ((*"abcdefgh", "ა", "ბ"), ("en", "ka"), ("s0", "s1")))
        source = {"run": str(self.base), "step": step, "weights": digest_of(base.weights)}
        ancestor = Ancestor(**source, symbols=8, languages=1, speakers=0)
        self.assertEqual(record.ancestor, ancestor)
        self.assertEqual(record.inherited_vocabulary, vocabulary("abcdefgh", ["en"]))
        self.assertIsNone(base.run.record.inherited_vocabulary)

    def test_the_language_of_its_own_corpus_is_spoken_by_default(self):
        base = read_record(latest(self.base / "checkpoints"))
        run = self.workspace.run_dir("tuned")
        record = read_record(latest(run / "checkpoints"))
        self.assertEqual((base.language, record.language), ("en", "ka"))
        self.assertEqual(fresh_record(record, settings=record.settings).language, "ka")
        with redirect_stdout(io.StringIO()) as shown:
            self.assertEqual(text.main(["ა", "--run", str(run)]), 0)
        self.assertIn("ა", shown.getvalue())

    def test_starts_from_the_averaged_weights_of_the_best_checkpoint(self):
        """Steps with a learning rate too small for float32 leave the weights unchanged."""
        best = read_record(latest(self.base / "checkpoints")).best.step
        expected = Checkpoint.read(self.base / f"checkpoints/step-{best:06d}").arrays("averages")
        still = ("--learning-rate 1e-30 --weight-decay 0 --max-steps 1",)
        self.assertEqual(tune("still", *still).code, 0)
        still = self.workspace.run_dir("still") / "checkpoints/step-000001"
        weights = Checkpoint.read(still).arrays("model")
        self.assertEqual(weights.keys(), expected.keys())
        for name, array in expected.items():
            np.testing.assert_array_equal(weights[name][: len(array)], array, err_msg=name)

    def test_inherits_model_size_and_text_front_end_by_default(self):
        named = "--text-frontend characters --model-size tiny".split()
        argv = [word for word in self.workspace.argv("plain") if word not in named]
        argv += f"--train-data {self.corpus} --init-from {self.base} --max-steps 2".split()
        self.assertEqual(self.workspace.main(*argv).code, 0)
        settings = load(self.workspace.run_dir("plain") / "config.yaml")
        inherited = (settings.model.model_size, settings.data.text_frontend)
        self.assertEqual(inherited, ("tiny", "characters"))
        again = self.workspace.main(*argv, "--resume")
        self.assertIn("nothing to do", again.out)

    def test_resumes_bit_for_bit_without_the_pretrained_run(self):
        broken = self.workspace.copy_run("tuned", "broken", self.addCleanup)
        shutil.rmtree(broken / "checkpoints/step-000006")
        away = self.base.rename(self.base.with_name("away"))
        self.addCleanup(away.rename, self.base)
        resumed = tune("broken", "--resume")
        self.assertEqual((resumed.code, resumed.err), (0, ""))
        self.assertNotIn("have changed: rebuilding", resumed.out)
        newest = [
            latest(self.workspace.run_dir(run) / "checkpoints") for run in ("tuned", "broken")
        ]
        tiny.assert_same_arrays(*newest)
        self.assertEqual(*(read_record(checkpoint).ancestor for checkpoint in newest))

    def test_a_fine_tuned_run_can_be_fine_tuned_again(self):
        finished = tune("second", "--max-steps 2", base=self.workspace.run_dir("tuned"))
        self.assertIn("symbols 10 kept, 0 new, languages 2 kept, 0 new\n", finished.out)


class Frozen(Runs):
    def test_frozen_components_keep_every_bit_and_have_no_moments(self):
        flags = (*["--freeze decoder --weight-decay 0.5 --gradient-accumulation 2 --batch-size 2"],)
        self.assertEqual(tune("frozen", *flags).code, 0)
        arrays = dict(arrays_of(latest(self.workspace.run_dir("frozen") / "checkpoints")))
        start = read_pretrained(self.base, self.workspace.folder).weights
        for name, array in start.items():
            for group in ("model", "averages"):
                weights = arrays[f"{group}/{name}"][: len(array)]
                # The new corpus has no English, and embeddings do not decay.
                is_kept = "decoder" in name or "language" in name
                self.assertEqual((weights == array).all(), is_kept, f"{group} {name}")
        moments = [name for name in arrays if name.startswith("optimizer/") and "momentum" in name]
        self.assertEqual(len(moments), 2)  # of the two embeddings
        self.assertFalse(any("decoder" in name for name in moments))

    def test_frozen_components_are_fixed_at_resume_in_any_order(self):
        self.assertEqual(tune("order", "--freeze decoder prosody").code, 0)
        resumed = tune("order", "--freeze prosody decoder --resume")
        self.assertEqual((resumed.code, resumed.err), (0, ""))
        self.assertIn("training.freeze is ", self.rejection("order", "--freeze prosody --resume"))
        self.assertIn("training.freeze is nothing", self.rejection("order", "--resume"))

    def test_freezing_needs_a_pretrained_run_and_a_trainable_component(self):
        self.assertIn("would stay random", self.workspace.train("none", "--freeze decoder").err)
        components = " ".join(task_named("tts").components)
        message = self.rejection("all", f"--freeze {components}")
        self.assertIn("nothing would be left to train", message)
        message = self.rejection("other", "--freeze output")
        self.assertIn("reference_encoder, text_encoder, prosody, decoder", message)
        self.assertIn("decoder", self.rejection("typing", "--freeze decodr"))

    def test_a_frozen_text_encoder_rejects_new_symbols(self):
        self.assertIn(
            "lacks symbols of the corpus (ა, ბ)", self.rejection("text", "--freeze text_encoder")
        )
        known = self.workspace.train("known", f"--init-from {self.base} --freeze text_encoder")
        self.assertEqual((known.code, known.err), (0, ""))


class Rejected(Runs):
    def test_a_missing_run_or_one_without_a_checkpoint_is_rejected(self):
        for base in (self.workspace.folder / "nowhere", self.corpus):
            self.assertIn("has no checkpoint", self.rejection("a", base=base))
        self.assertFalse(self.workspace.run_dir("a").exists())

    def test_fine_tuning_from_the_run_itself_is_rejected(self):
        message = self.rejection("self", base=self.workspace.run_dir("self") / ".." / "self")
        self.assertIn("cannot start from its own weights", message)

    def test_a_damaged_checkpoint_is_rejected(self):
        broken = self.workspace.folder / "runs" / "damaged"
        shutil.copytree(self.base, broken)
        for path in (broken / "checkpoints").glob("*/averages.safetensors"):
            path.write_bytes(path.read_bytes()[:-100])
        self.assertIn("averages.safetensors cannot be read", self.rejection("b", base=broken))
        for path in (broken / "checkpoints").glob("*/state.json"):
            path.write_text("{")
        self.assertIn("state.json cannot be read", self.rejection("b", base=broken))

    def test_another_architecture_is_rejected(self):
        changed = self.workspace.folder / "runs" / "other"
        shutil.copytree(self.base, changed)
        for checkpoint in changed.glob("checkpoints/step-*"):
            arrays = Checkpoint.read(checkpoint).arrays("averages")
            arrays["tiny/decoder/kernel"] = np.zeros([80, 81], np.float32)
            replace_arrays(checkpoint, "averages", arrays)
        difference = "'tiny/decoder/kernel' is float32 (80, 81), but the model has float32 (80, 80)"
        self.assertIn(difference, self.rejection("c", base=changed))

    def test_another_model_size_is_rejected(self):
        expected = "model_size small was given, but the run starts from .* another --init"
        self.assertRegex(self.rejection("d", "--model-size small"), expected)

    def test_another_front_end_is_taken_if_it_is_given(self):
        def train(*flags):
            start = f"--init-from {self.base} --checkpoint-every 1"
            return self.workspace.train("phonemes", start, *flags)

        phonemes, longer = "--text-frontend phonemes --max-steps 2", "--resume --max-steps 3"
        finished = train(phonemes)
        self.assertEqual(finished.code, 0, finished)
        record = read_record(latest(self.workspace.run_dir("phonemes") / "checkpoints"))
        self.assertEqual((record.frontend.kind, record.symbols[:8]), ("phonemes", (*"abcdefgh",)))
        self.assertIn("ɛ", record.symbols)
        other = train("--text-frontend characters", longer)
        self.assertIn("text_frontend is characters, but", other.err)
        self.assertEqual(train("--text-frontend phonemes", longer).code, 0)

    def test_another_model_size_at_resume_is_rejected(self):
        message = self.rejection("tuned", "--resume --model-size small")
        self.assertIn(f"the run starts from {self.workspace.run_dir('tuned')}", message)
        self.assertIn("Leave model_size out, or ", message)

    def test_another_pretrained_run_at_resume_is_rejected(self):
        message = self.rejection("tuned", "--resume", base=self.workspace.folder)
        self.assertIn("training.init_from is ", message)


class Rows(unittest.TestCase):
    def test_rows_are_matched_by_name_and_new_ones_lie_around_their_mean(self):
        known = np.array([[1.0, 0.0], [3.0, 4.0]], np.float32)
        fresh = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], np.float32)
        rows = extend_rows(known, fresh, ["a", "b"], ["b", "z", "a"], 0)
        np.testing.assert_allclose(rows, [[3.0, 4.0], [2.3, 2.4], [1.0, 0.0]])

    def test_special_rows_are_kept_and_are_not_in_the_mean(self):
        known = np.array([[90.0], [1.0], [3.0]], np.float32)
        fresh = np.array([[0.1], [0.2], [0.3], [0.5]], np.float32)
        rows = extend_rows(known, fresh, ["a", "b"], ["a", "b", "z"], 1)
        np.testing.assert_allclose(rows, [[90.0], [1.0], [3.0], [2.5]])

    def test_a_language_begins_as_the_same_one_of_other_regions(self):
        known = np.array([[1.0], [3.0], [8.0]], np.float32)
        fresh = np.array([[0.5]] * 3, np.float32)
        names = ["en-us", "en-gb", "es"]
        rows = extend_rows(known, fresh, names, ["en", "es-419", "en-gb"], 0, base_language)
        np.testing.assert_allclose(rows, [[2.5], [8.5], [3.0]])


class Network(unittest.TestCase):
    """Loading weights into the XTTS network."""

    @classmethod
    def setUpClass(cls):
        cls.model = build_model()

    def pretrained_of(self, model, symbols, languages) -> Pretrained:
        random = np.random.default_rng(0)
        weights = {
            v.path: random.normal(size=v.shape).astype(np.float32)
            for v in model.trainable_variables
        }
        record = make_record(symbols=tuple(symbols), languages=tuple(languages), step=1)
        checkpoint = Checkpoint(Path("runs/base/checkpoints/step-000001"), record)
        return Pretrained(TrainedRun(Path("runs/base"), checkpoint), weights)

    def test_components_match_the_choices_of_the_setting(self):
        self.assertEqual(set(self.model.component_layers()), set(task_named("tts").components))
        self.assertEqual(
            {part for task in ("tts", "asr", "vocoder") for part in task_named(task).components},
            set(SETTINGS["freeze"].choices),
        )

    def test_loads_all_weights_and_matches_rows_by_name(self):
        model = self.model
        base = self.pretrained_of(model, LETTERS, ["ka", "en"])
        # `a` is missing, all others have moved.
        new = vocabulary([*LETTERS[::-1][:-1], "z"], ["en", "fa"])
        symbols, languages = model.symbol_embedding.embeddings, model.language_embedding.embeddings
        fresh = symbols.numpy()
        load_pretrained(base, model, new)
        for variable in model.trainable_variables:
            if variable.path not in model.vocabulary_variables():
                np.testing.assert_array_equal(
                    variable.numpy(), base.weights[variable.path], err_msg=variable.path
                )
        old_rows, rows = base.weights[symbols.path], symbols.numpy()
        np.testing.assert_array_equal(rows[:3], old_rows[:3])
        np.testing.assert_array_equal(rows[3:12], old_rows[:3:-1])
        np.testing.assert_allclose(rows[12], old_rows[3:].mean(axis=0) + fresh[12], rtol=1e-5)
        np.testing.assert_array_equal(languages.numpy()[0], base.weights[languages.path][1])

    def test_what_an_aligner_was_taught_is_kept_by_runs_that_start_from_it_and_by_no_others(self):
        def contexts(name):
            weights = TrainedRun.open(workspace.run_dir(name)).weights()
            return {path: x for path, x in weights.items() if "/context_" in path}

        base = TrainedRun.open(workspace.run_dir("base")).record
        table = {"symbols": len(base.symbols) + FIRST_SYMBOL_ID, "languages": len(base.languages)}
        for name, is_taught in (("taught", True), ("untaught", False)):
            network = build_model(contexts=is_taught, **table)
            for context in network.aligner.contexts:
                context.out.kernel.assign(tf.random.normal(context.out.kernel.shape))
            save_checkpoint(workspace.run_dir(name), base, training_state(network))
        self.assertEqual((len(contexts("taught")), contexts("untaught")), (12, {}))
        # Held-out sentences have a network of their own, and so has a run that goes on.
        flags = "--validate-every 1 --ema-decay 0.9"
        with mock.patch("myxtts.tasks.tts.task.build_xtts", build_xtts), small_models():
            for name in ("taught", "untaught"):
                for steps in ("--max-steps 1", "--max-steps 2 --resume"):
                    start = f"--init-from {workspace.run_dir(name)}"
                    finished = workspace.train(f"from_{name}", start, flags, steps)
                    self.assertEqual(finished.code, 0, finished)
                np.testing.assert_equal(contexts(f"from_{name}"), contexts(name))

    def test_rejected_weights_leave_the_network_unchanged(self):
        model = self.model
        before = [v.numpy() for v in model.trainable_variables]
        good = self.pretrained_of(model, LETTERS, ["en", "ka"])
        fewer = dict(list(good.weights.items())[:-1])
        symbols = model.symbol_embedding.embeddings.path
        wider = good.weights | {symbols: np.zeros((SYMBOLS, 99), np.float32)}
        known, new = (vocabulary(names, ["en", "ka"]) for names in (LETTERS, (*LETTERS[1:], "z")))
        for weights, expected in ((fewer, "is nothing, but the model has"), (wider, r"\(13, 99\)")):
            with self.assertRaisesRegex(CheckpointError, expected):
                load_pretrained(Pretrained(good.run, weights), model, known)
        with self.assertRaisesRegex(ConfigError, r"lacks symbols of the corpus \(z\)"):
            load_pretrained(good, model, new, ("text_encoder",))
        for left, variable in zip(before, model.trainable_variables, strict=True):
            np.testing.assert_array_equal(left, variable.numpy())

    def test_unfrozen_components_train_even_with_gradient_checkpointing(self):
        frozen = ("reference_encoder", "text_encoder")
        model = build_model(gradient_checkpointing=True, cfg_dropout=0.9)
        replicas = tiny.replicas_on(MODEL)
        with replicas.scope():
            # Without weight decay, which moves weights that have no gradient.
            optimizer = make_optimizer(0.0, "float32")
            state = TrainingState(model, optimizer, True, replicas, frozen)
        frozen_paths = set()
        for layer in chain(*(model.component_layers()[name] for name in frozen)):
            frozen_paths |= {v.path for v in layer.variables}
        random = np.random.default_rng(0)
        for variable in model.trainable_variables:  # zero-initialised layers block the gradient
            variable.assign_add(random.normal(0.0, 0.05, variable.shape))
        before = {v.path: v.numpy() for v in model.trainable_variables}
        step = Step(state, 1.0, 1, static_shapes=False, compile_xla=False)
        batch = tiny.on_device(tiny.features([(5, 13), (8, 24), (6, 20), (4, 9)]))
        with mock.patch("keras.remat", wraps=keras.remat) as recomputed:
            for number in (1, 2):
                tiny.take_step(step, [[batch]], number, 1e-2, 0.9)
        self.assertTrue(recomputed.called)
        for variable in model.trainable_variables:
            same = (variable.numpy() == before[variable.path]).all()
            self.assertEqual(same, variable.path in frozen_paths, variable.path)
        self.assertEqual(len(state.averages), len(before.keys() - frozen_paths))
        self.assertEqual(set(state.variables()["averages"]), {v.path for v in model.variables})
