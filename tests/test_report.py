"""report.html and index.html of synthetic runs: their data, and how a browser draws them."""

import html
import itertools
import json
import os
import re
import shutil
import subprocess
import threading
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
import soundfile
from PIL import Image

from myxtts.base.clock import MODEL, Clock
from myxtts.base.progress import Observation
from myxtts.config.flags import with_values
from myxtts.config.schema import Config, LocalSGDConfig
from myxtts.devicefeed.times import Span, Timeline, Times
from myxtts.extras.jobs.status import JobsPage, LauncherState, merge_marks
from myxtts.report import overview, samples
from myxtts.report import page as run_page
from myxtts.report.metrics import POINTS, History, Series, read_last_report, validation_scores
from myxtts.report.page import PageThread, RunPage, excerpt
from myxtts.run.observation import Observer, ObserverFailed
from tests.devicefeed.feeds import wait_until
from tests.fixtures import temporary_folder
from tests.html_checker import Checker

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


def data_of(page: Path) -> dict:
    """Return the JSON that a page is drawn from."""
    found = re.search(r'<script id="data"[^>]*>(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(found[1])


def report_of(step: int, loss: float | None = 1.0, wait_s: float = 0.0, **more) -> dict:
    """Return a line of metrics.jsonl, of steps of 0.1 s with a wait."""
    busy = 0.1 / (0.1 + wait_s)
    report = {"step": step, "epoch": 0, "mel": loss, "loss": loss, "gradient_norm": 1.0}
    report |= {"learning_rate": 1e-3, "step_s": 0.1 + wait_s, "wait_s": wait_s, "pause_s": 0.01}
    report |= {"read_s": 0.001, "produce_s": 0.04, "blocked_s": 0.059, "steps_per_s": 10.0 * busy}
    report |= {"audio_seconds_per_s": 200.0, "padding": 0.05, "accelerator_utilisation": busy}
    return report | {"bottleneck": "step" if busy > 0.95 else "read", "remaining_s": 720.0} | more


class Folder(unittest.TestCase):
    """A run without a network: its files."""

    def setUp(self):
        self.runs = temporary_folder(self.addCleanup) / "runs"
        self.folder = self.runs / "voice"
        self.folder.mkdir(parents=True)
        self.config = Config()
        self.metrics = self.folder / "metrics.jsonl"

    def page(self, timeline: Timeline | None = None, ended: str = "") -> Path:
        """Write the page of the run once, from all of its files."""
        return self.run_page(timeline=timeline).write(ended)

    def run_page(self, folder: Path | None = None, timeline: Timeline | None = None) -> RunPage:
        return RunPage(folder or self.folder, self.config, timeline or Timeline())

    def data(self, timeline: Timeline | None = None, ended: str = "") -> dict:
        """Return what the page is drawn from."""
        return data_of(self.page(timeline, ended))

    def report(self, *lines: dict, folder: Path | None = None) -> None:
        with open((folder or self.folder) / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)

    def history(self, *lines: dict) -> History:
        self.report(*lines)
        history = History(self.metrics)
        history.update()
        return history

    def worker(self) -> None:
        worker = self.folder / "worker-1"
        worker.mkdir()
        self.report(report_of(20, wait_s=0.3), folder=worker)
        (worker / "run.json").write_text('{"host": "second"}')

    def sample(
        self, step: int, name: str = "1-a", kinds: tuple[str, ...] = ("", "recording")
    ) -> Path:
        folder = self.folder / "samples" / f"step-{step:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 16, 3), np.uint8)).save(folder / f"{name}.png")
        for kind in kinds:
            wave = np.sin(np.arange(4800, dtype=np.float32) / 10 + len(kind) + step)
            soundfile.write(folder / samples.sound_file(name, kind), wave, 24_000)
        return folder

    def score(self, step: str, content: bytes = b"| a | b |\n") -> None:
        folder = self.folder / "evaluation" / step
        folder.mkdir(parents=True)
        (folder / "scores.md").write_bytes(content)

    def tables(self) -> None:
        """Write transcripts, scores of two checkpoints and facts to the run."""
        (self.sample(20, kinds=()) / "transcripts.txt").write_text("a <b>")
        for step, score in (("step-000010", 1.7), ("step-000020", 3.1)):
            table = f"| metric | <x> |\n|---|---|\n| PESQ | {score} |\n\n- of 50 & more\n"
            self.score(step, table.encode())
        numbers = {"numbers": {"model": "tts <tiny>", "feed": "3"}}
        (self.folder / "run.json").write_text(json.dumps(numbers))


class Curves(Folder):
    def test_extremes_of_any_number_of_reports_are_kept_in_few_points(self):
        series, random = Series(), np.random.default_rng(0)
        values = random.normal(size=20_000)
        for step, value in enumerate(values.tolist()):
            series.add(step, value)
        points = series.points
        self.assertTrue(POINTS <= len(points) <= 2 * POINTS)
        self.assertAlmostEqual(max(point.high for point in points), values.max(), 3)
        self.assertAlmostEqual(min(point.low for point in points), values.min(), 3)
        self.assertEqual(points[-1].step, 19_999)
        steps = np.diff([-1, *(point.step for point in points)])
        self.assertAlmostEqual(float(steps @ [point.mean for point in points]), values.sum(), 0)
        self.assertEqual(series.best, (values.argmin(), values.min()))

    def test_lines_are_read_once_as_they_are_written(self):
        history = self.history()
        self.report(report_of(1, 3.0))
        history.update()
        with open(self.metrics, "a") as file:
            file.write('{"step": 2, "lo')
        history.update()
        self.assertEqual(history.step, 1)
        with open(self.metrics, "a") as file:
            file.write('ss": null}\n')
        with mock.patch.object(json, "loads", side_effect=json.loads) as loads:
            history.update()
        self.assertEqual(loads.call_count, 1)
        self.assertEqual((history.step, history.series["loss"].not_finite), (2, (2, 1)))

    def test_a_later_line_of_a_step_adds_its_metrics_once(self):
        """A resumed run repeats the observation that its checkpoint does not know."""
        observed = {"step": 30, "validation_loss": 0.5}
        history = self.history(*map(report_of, range(10, 60, 10)), observed)
        self.report(report_of(60), observed)
        history.update()
        self.assertEqual([point.step for point in history.points("validation_loss")], [30])
        self.assertEqual(history.series["validation_loss"].since_best, 0)
        self.assertEqual([point.step for point in history.points("loss")], [10, 20, 30, 40, 50, 60])

    def test_the_first_interval_has_no_share_since_a_job_begins_at_the_step_of_its_warm_start(self):
        history = self.history(report_of(1050, wait_s=0.2))
        self.report(report_of(1100, wait_s=0.0), report_of(1200, wait_s=0.1))
        history.update()
        self.assertAlmostEqual(history.seconds["wait"], 100 * 0.1)
        self.assertAlmostEqual(history.seconds["step"], 150 * 0.1)

    def test_a_rare_metric_is_found_far_from_the_end(self):
        self.report(report_of(1, validation_loss=0.5), *map(report_of, range(2, 60)))
        with mock.patch("myxtts.report.metrics.TAIL_BYTES", 1_000):
            self.assertEqual(read_last_report(self.metrics, "validation_loss")["step"], 1)
            self.assertEqual(read_last_report(self.metrics)["step"], 59)
            self.assertEqual(read_last_report(self.metrics, "nothing"), {})

    def test_a_file_with_fewer_lines_is_read_from_its_beginning(self):
        history = self.history(*map(report_of, (10, 20, 30)))
        other = self.runs / "other"
        other.mkdir()
        self.report(report_of(10), report_of(20, 7.0), folder=other)
        os.replace(other / "metrics.jsonl", self.metrics)
        history.update()
        self.assertEqual([point.mean for point in history.points("loss")], [1.0, 7.0])

    def test_values_near_the_largest_number_are_finite_on_the_page(self):
        series = Series()
        for step in range(4 * POINTS + 1):
            series.add(step, 1.5e308)
            series.add(step + 0.5, 1.4e308)
        self.assertTrue(all(np.isfinite(point.mean) for point in series.points))


class Answers(Folder):
    def learning(self, *lines: dict) -> tuple[str, str]:
        answer = run_page.is_learning(self.history(*lines))
        return answer.state, answer.answer

    def test_validations_and_reports_are_counted_beyond_the_points_of_a_curve(self):
        losses = [1.0 / step if step <= 990 else 1.0 for step in range(1, 1000)]
        lines = [report_of(10 * n, validation_loss=loss) for n, loss in enumerate(losses, 1)]
        state, answer = self.learning(*lines)
        self.assertEqual(state, "bad")
        self.assertIn("9 validations without a better one", answer)
        with mock.patch.object(run_page, "STALE_S", 0.0):
            self.assertAlmostEqual(self.data()["stale"], 5 * 10 * 0.11)

    def test_a_run_learns_while_its_validation_loss_falls(self):
        lines = [report_of(step, 1 / step, validation_loss=1 / step) for step in range(1, 9)]
        expected = ("good", "yes: best validation loss 0.125 at step 8, the newest")
        self.assertEqual(self.learning(*lines), expected)

    def test_a_run_whose_validation_loss_rises_while_training_goes_on_overfits(self):
        lines = [report_of(step, 1 / step, validation_loss=float(step)) for step in range(1, 12)]
        expected = ("bad", "no: 10 validations without a better one, it overfits")
        self.assertEqual(self.learning(*lines), expected)

    def test_an_alignment_is_judged_from_step_400_on(self):
        for evidence, short, steps, state, words in (
            (0.5, 0.1, 390, "unknown", "too early"),
            (0.5, 0.1, 400, "good", "yes: 50% explained by the recordings, 10% of the tokens"),
            (
                0.54,
                0.25,
                3000,
                "fair",
                "partly: 54% explained by the recordings, 25% of the tokens",
            ),
            (0.2, 0.1, 400, "bad", "no: 20% explained by the recordings"),
            (0.5, 0.6, 900, "bad", "no: 50% explained by the recordings, 60% of the tokens"),
        ):
            self.metrics.unlink(missing_ok=True)
            figures = {"alignment_evidence": evidence, "one_frame_tokens": short}
            history = self.history(
                *(report_of(step, **figures) for step in range(0, steps + 1, 10))
            )
            answer = run_page.is_aligned(history)
            self.assertEqual(answer.state, state)
            self.assertIn(words, answer.answer)

    def test_a_run_whose_selected_score_rises_learns_whatever_its_validation_loss_does(self):
        score = "evaluation_dnsmos_mean"
        lines = [report_of(n, validation_loss=n, **{score: 3 + n / 100}) for n in range(1, 12)]
        answer = run_page.is_learning(self.history(*lines), "dnsmos")
        expected = ("good", "yes: best DNSMOS 3.11 at step 11, the newest")
        self.assertEqual((answer.state, answer.answer), expected)
        self.report(*(report_of(step, **{score: 3.0}) for step in range(12, 16)))
        answer = run_page.is_learning(self.history(), "dnsmos")
        self.assertIn("no: 4 evaluations without a better one", answer.answer)

    def test_without_validation_the_trend_of_the_training_loss_decides(self):
        for slope, state in ((-0.01, "good"), (0.0, "fair"), (0.01, "bad")):
            with self.subTest(slope=slope):
                self.metrics.unlink(missing_ok=True)
                lines = (report_of(step, 1 + slope * step) for step in range(1, 30))
                self.assertEqual(self.learning(*lines)[0], state)

    def test_a_loss_that_is_not_finite_is_named(self):
        self.assertIn("not finite", self.learning(report_of(1), report_of(2, None))[1])

    def test_a_starving_device_is_named_with_the_slowest_stage(self):
        history = self.history(*(report_of(step, wait_s=0.1) for step in range(5)))
        answer = run_page.is_starving(history)
        expected = ("bad", "yes: the model device waits 50 % of its time, for read")
        self.assertEqual((answer.state, answer.answer), expected)

    def test_what_is_left_is_in_time_steps_and_utterances(self):
        history = self.history(report_of(100))
        facts = {"total_steps": 300, "steps_per_epoch": 50, "utterances": 400}
        answer = run_page.how_long(history, facts, "")
        self.assertIn("12 min, until about", answer.answer)
        self.assertEqual(answer.detail, "step 100 of 300; 200 steps, about 1,600 utterances left")
        ended = run_page.how_long(history, facts, "stopped by SIGTERM")
        self.assertEqual(ended.answer, "stopped by SIGTERM")

    def test_settings_other_than_the_defaults_are_shown_as_flags(self):
        given = {"learning_rate": 0.5, "resume": True, "cache_dataset": True, "model_gpus": (0, 1)}
        changed = run_page.changed_settings(with_values(Config(), given))
        expected = {"--learning-rate": "0.5", "--cache-dataset": "", "--model-gpus": "0 1"}
        self.assertEqual(changed, expected)

    def test_rates_and_decibels_of_a_validation_are_named(self):
        metrics = {"step": 3, "loss": 2.0, "validation_loss": 1.0}
        metrics |= {"validation_log_mel_error_db": 1.234, "validation_word_error_rate": 0.024}
        metrics["validation_character_error_rate"] = None
        expected = ["word error rate 2.4 %", "log mel error 1.23 dB"]
        self.assertEqual(validation_scores(metrics), expected)


class Lanes(unittest.TestCase):
    def test_the_clock_records_steps_waits_pauses_and_batches(self):
        now = map(float, range(40))
        timeline = Timeline()
        clock = Clock(lambda: next(now), timeline=timeline)  # now 0
        with clock.wait():  # 1 to 2
            pass
        clock.finish_step(1.0, 1.0, [Times(-3.0, -2.0, -1.0, "data")])  # 3
        with clock.pause("validation"):  # 4 to 5
            pass
        spans = timeline.newest()
        self.assertIn(Span("data", "read", -3.0, -2.0, 1), spans)
        self.assertIn(Span("data", "produce", -2.0, -1.0, 1), spans)
        self.assertIn(Span("data", "feed", -1.0, 2.0, 1), spans)
        actual = [span[1:4] for span in spans if span.lane == MODEL][-3:]
        self.assertEqual(actual, [("step", 2.0, 3.0), ("step", 3.0, 4.0), ("validation", 4.0, 5.0)])

    def test_each_wait_is_for_a_batch_of_each_replica(self):
        timeline = Timeline()
        clock = Clock(itertools.count().__next__, replicas=2, timeline=timeline)
        for _ in range(2):  # the loop takes a batch ahead
            with clock.wait():
                pass
        for _ in range(2):
            clock.finish_step(1.0, 1.0, [Times(0.0, 0.0, 0.0, "a"), Times(0.0, 0.0, 0.0, "b")])
        feeds = [span for span in timeline.newest() if span.kind == "feed"]
        taken = {(span.lane, span.number): span.end_s for span in feeds}
        self.assertEqual(taken["a", 1], taken["b", 1])
        self.assertLess(taken["a", 1], taken["a", 2])

    def test_a_timeline_is_bounded_and_can_be_read_while_it_grows(self):
        timeline = Timeline(100)

        def grow():
            for i in range(20_000):
                timeline.add(Span(MODEL, "step", i, i + 1))

        thread = threading.Thread(target=grow)
        thread.start()
        while thread.is_alive():
            self.assertLessEqual(len(timeline.newest()), 100)
        thread.join()
        self.assertEqual(timeline.newest()[-1].start_s, 19_999)

    def test_an_excerpt_has_the_newest_steps_from_time_0(self):
        spans = [Span(MODEL, "step", i, i + 1.0, i) for i in range(100)]
        cut = excerpt([*spans, Span("observer", "validation", 50.0, 98.5)])
        self.assertEqual((cut[0].number, cut[0].start_s, cut[-2].end_s), (76, 0.0, 24.0))
        self.assertEqual(cut[-1], Span("observer", "validation", 0.0, 22.5))
        self.assertEqual(excerpt([]), [])

    def test_an_observation_is_on_the_timeline_even_if_it_fails(self):
        timeline = Timeline()
        observer = Observer(lambda observation, throttle: 1 / 0, lambda *_: None, timeline=timeline)
        with observer, self.assertRaises(ObserverFailed):
            observer.begin(Observation(30, ("validation", "samples")))
            observer.wait(lambda: False)
        (span,) = timeline.newest()
        expected = ("observer", "validation and samples", 30)
        self.assertEqual((span.lane, span.kind, span.number), expected)

    def test_an_excerpt_leaves_out_a_long_pause(self):
        spans = [Span(MODEL, "step", i / 10, (i + 1) / 10, i) for i in range(20)]
        spans += [Span(MODEL, "samples", 2.0, 30.0), Span(MODEL, "step", 30.0, 30.1, 20)]
        self.assertEqual([span.number for span in excerpt(spans)], list(range(20)))
        spans += [Span(MODEL, "step", 30 + i / 10, 30 + (i + 1) / 10, 20 + i) for i in range(1, 10)]
        self.assertEqual([span.number for span in excerpt(spans)], list(range(20, 30)))


class Page(Folder):
    def setUp(self):
        super().setUp()
        self.report(report_of(20))

    def step(self, data: dict, step: int) -> dict:
        """Return the samples of a step on a page."""
        return next(part for part in data["samples"]["steps"] if part["step"] == step)

    def urls(self, part: dict) -> list[str]:
        """Return the addresses of all sounds and pictures of a step."""
        urls = []
        for sample in part["samples"]:
            urls += [url for _, url in sample["sounds"]] + [sample["image"]]
        return urls

    def test_newest_samples_are_in_the_page_while_there_is_room_and_others_are_linked(self):
        self.sample(10)
        self.sample(20)
        data = self.data(ended="finished")
        self.assertEqual([part["step"] for part in data["samples"]["steps"]], [20, 10])
        *sounds, image = self.urls(self.step(data, 20))
        self.assertEqual([url[:15] for url in sounds], ["data:audio/mpeg"] * 2)
        self.assertEqual(image[:15], "data:image/jpeg")
        links = [f"samples/step-000010/1-a{end}" for end in (".recording.wav", ".wav", ".png")]
        self.assertEqual(self.urls(self.step(data, 10)), links)
        with mock.patch.object(samples, "EMBEDDED_BYTES", 0):
            data = self.data(ended="finished")
        self.assertTrue(all(url.startswith("samples/") for url in self.urls(self.step(data, 20))))

    def test_samples_are_compressed_once_and_within_the_time_for_it(self):
        self.sample(20)
        report = self.run_page()

        def sounds():
            return report.write().read_text().count("data:audio")

        with mock.patch.object(run_page, "COMPRESS_S", -1.0):
            self.assertEqual(sounds(), 0)
        with mock.patch.object(run_page, "COMPRESS_S", 60.0):
            self.assertEqual(sounds(), 2)
        with mock.patch.object(soundfile, "write", side_effect=AssertionError):
            self.assertEqual(sounds(), 2)

    def test_samples_of_older_steps_are_not_drawn(self):
        for step in (10, 20, 30):
            self.sample(step)
        drawn = samples.Samples(self.folder)
        with mock.patch.object(samples, "SHOWN_STEPS", 2):
            found = drawn.read(60.0)
        self.assertEqual([part["step"] for part in found["steps"]], [30, 20])
        self.assertEqual((found["older"], drawn.read(60.0)["older"]), (1, 0))

    def test_other_folders_among_samples_and_scores_are_no_steps(self):
        self.sample(20)
        shutil.copytree(self.sample(10), self.folder / "samples" / "step-000010-good")
        self.score("step-1000000")
        self.score("step-999000")
        data = self.data(ended="finished")
        self.assertEqual([part["step"] for part in data["samples"]["steps"]], [20, 10])
        self.assertEqual([name for name, _ in data["scores"]], ["step-1000000", "step-999000"])

    def test_damaged_samples_and_scores_leave_the_rest_of_the_page(self):
        folder = self.sample(20)
        (folder / "transcripts.txt").write_bytes(b"caf\xe9")
        self.score("step-000020", b"| caf\xe9 | b |\n")
        with mock.patch("PIL.Image.Image.convert", side_effect=SyntaxError("broken PNG file")):
            data = self.data(ended="finished")
        self.assertEqual(self.step(data, 20)["texts"], ["caf\ufffd"])
        self.assertEqual(data["scores"], [["step-000020", "| caf\ufffd | b |\n"]])
        (folder / "1-a.wav").write_bytes(b"RIFF")
        (folder / "1-a.png").write_bytes(b"")
        urls = self.urls(self.step(self.data(), 20))
        self.assertIn("samples/step-000020/1-a.wav", urls)
        self.assertIn("samples/step-000020/1-a.png", urls)

    def test_file_names_in_links_are_percent_encoded_and_sounds_have_their_order(self):
        self.sample(20)
        self.sample(10, "1-a#b%?", kinds=tuple(samples.LABELS))
        kinds = (".recording", ".griffin-lim", ".vocoder", ".synthesized-griffin-lim", "")
        expected = [f"samples/step-000010/1-a%23b%25%3F{kind}.wav" for kind in kinds]
        *sounds, image = self.urls(self.step(self.data(ended="finished"), 10))
        self.assertEqual(sounds, expected)
        self.assertEqual(image, "samples/step-000010/1-a%23b%25%3F.png")

    def test_transcripts_and_scores_are_on_the_page(self):
        self.report(report_of(30, evaluation_voicing_error=0.1))
        self.tables()
        with mock.patch.object(samples, "SHOWN_SCORES", 1):
            data = self.data()
        self.assertEqual([name for name, _ in data["scores"]], ["step-000020"])  # the newest alone
        self.assertEqual(self.step(data, 20)["texts"], ["a <b>"])
        self.assertIn("evaluation_voicing_error", data["series"])
        self.assertNotIn("<b>", self.page().read_text())  # no text is read as HTML

    def test_syncs_of_local_sgd_are_marked(self):
        self.assertEqual([step for step, _ in overview.sync_marks(30, 70)], [30, 60])
        self.config = Config(local_sgd=LocalSGDConfig(sync_every=30))
        self.report(*map(report_of, (30, 40)))
        self.assertEqual(self.data()["marks"], [[30, "weights averaged"]])

    def test_workers_have_a_column_each_and_spans_are_kept(self):
        self.worker()
        timeline = Timeline()
        timeline.add(Span("/GPU:2", "produce", 0.0, 0.25, 1), Span(MODEL, "step", 0.0, 1.0, 1))
        data = self.data(timeline)
        self.assertEqual(list(data["workers"]), ["worker 0 (chief)", "worker 1"])
        second = data["workers"]["worker 1"]
        self.assertEqual((second["host"], second["wait_s"]), ("second", 0.3))
        spans = json.loads((self.folder / "timeline.json").read_text())
        self.assertEqual(data["spans"], spans)

    def test_a_page_of_a_run_that_has_ended_says_how(self):
        data = self.data(ended="ended by NonFiniteLoss: <x>")
        self.assertEqual(data["answers"][2]["answer"], "ended by NonFiniteLoss: <x>")
        self.assertEqual(data["stale"], 0)

    def test_pages_are_valid_and_refer_to_nothing_elsewhere(self):
        scores = {"validation_loss": 1.0, "validation_word_error_rate": 0.1}
        self.report(*(report_of(step, **scores) for step in range(30, 90, 10)))
        self.sample(20)
        timeline = Timeline()
        timeline.add(Span(MODEL, "step", 0.0, 1.0, 1), Span("/CPU:0", "feed", 0.0, 0.5, 1))
        jobs = make_jobs(self.runs / "jobs")
        for path in (self.page(timeline), overview.write_overview(self.runs), jobs):
            with self.subTest(page=path.name):
                Checker(self, path.read_text())

    def test_colours_can_be_told_from_their_background(self):
        parts = overview.TEMPLATE.read_text().split("@media")[:2]
        light, dark = (dict(re.findall(r"--(\w+):(#\w+)", part)) for part in parts)
        least = {"text": 7.0} | dict.fromkeys(("soft", "link", "good", "fair", "bad"), 4.5)
        for theme in (light, {**light, **dark}):
            for name, background in itertools.product(least, ("bg", "card")):
                with self.subTest(name=name, background=theme[background]):
                    self.assertGreaterEqual(contrast(theme[name], theme[background]), least[name])
            for number in range(7):  # WCAG 2.2, 1.4.11: graphics
                self.assertGreaterEqual(contrast(theme[f"c{number}"], theme["bg"]), 3.0)


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours; WCAG 2.2."""

    def luminance(colour: str) -> float:
        digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
        parts = np.array([int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ (0.2126, 0.7152, 0.0722))

    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def make_jobs(folder: Path) -> Path:
    """Write two jobs that were merged, and their page."""
    process = {"state": "done", "restarts": 1}
    processes = dict.fromkeys(("warmstart", "gpu0", "gpu1", "merge"), process)
    state = {
        "host": "",
        "stage": "done",
        "total_steps": 60,
        "immutable": {"gpus": [0, 1], "warmstart_steps": 20, "sync_every": 25, "corpus": {}},
        "processes": processes | {"gpu1": process | {"state": "running"}},
        "merge": {"job_steps": {"gpu0": 60, "gpu1": 60}, "exit_code": 0},
    }
    for name in ("warmstart", "gpu0", "gpu1"):
        (folder / name).mkdir(parents=True)
        lines = [report_of(step, 2.0 + (name == "gpu1")) for step in range(10, 70, 10)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / name / "metrics.jsonl").write_text(text)
    (folder / "launcher.json").write_text(json.dumps(state))
    return JobsPage(folder, LauncherState(**state)).write()


class SeveralRuns(Folder):
    def overview(self) -> list[dict]:
        return data_of(overview.write_overview(self.runs))["runs"]

    def test_jobs_have_a_column_each_and_marks_of_their_merges(self):
        data = data_of(make_jobs(self.runs / "both"))
        steps = {name: (job["step"], job["total"]) for name, job in data["jobs"].items()}
        self.assertEqual(steps, {"warmstart": (60, 20), "gpu0": (60, 60), "gpu1": (60, 60)})
        self.assertEqual([job["gpu"] for job in data["jobs"].values()], [None, 0, 1])
        marks = [[step, "weights averaged"] for step in (25, 50, 60)]
        self.assertEqual(data["marks"], [*marks, [60, "merge of gpu0, gpu1"]])
        result = "The result is the merge of gpu0 (step 60), gpu1 (step 60)."
        self.assertEqual(data["merge"], result)

    def test_a_warm_start_averages_no_weights(self):
        immutable = {"gpus": [0, 1], "warmstart_steps": 50, "sync_every": 25, "corpus": {}}
        state = LauncherState(host="", total_steps=100, immutable=immutable)
        marks = merge_marks(state, step=99)
        self.assertEqual([step for step, _ in marks], [75])

    def test_a_job_is_among_all_runs_and_has_no_overview_of_its_own(self):
        make_jobs(self.runs / "both")
        names = [run["name"] for run in data_of(self.runs / "index.html")["runs"]]
        self.assertIn("both/gpu1", names)
        job = self.run_page(self.runs / "both" / "gpu0")
        self.assertTrue(data_of(job.write())["is_job"])
        self.assertFalse((self.runs / "both" / "index.html").exists())

    def test_overview_compares_runs_and_jobs(self):
        self.report(report_of(20, 0.75), {"step": 20, "validation_loss": 0.5})
        self.report({"step": 20, "validation_loss": 0.5, "validation_word_error_rate": 0.024})
        (self.folder / "run.json").write_text('{"task": "asr tiny", "total_steps": 40}')
        make_jobs(self.runs / "both")
        rows = {row["name"]: row for row in self.overview()}
        self.assertEqual(set(rows), {"voice", "both/warmstart", "both/gpu0", "both/gpu1"})
        row = rows["voice"]
        self.assertEqual((row["report"]["step"], row["report"]["loss"]), (20, 0.75))
        self.assertEqual((row["validation_loss"], row["scores"]), (0.5, ["word error rate 2.4 %"]))
        self.assertEqual(row["facts"], {"task": "asr tiny", "total_steps": 40})
        self.assertEqual([path for path in self.runs.iterdir() if path.name.startswith(".")], [])

    def test_a_run_that_cannot_be_read_is_left_out(self):
        self.report(report_of(20))
        refused = PermissionError(13, "Permission denied", "metrics.jsonl")
        with mock.patch("myxtts.report.overview.read_last_report", side_effect=refused):
            self.assertEqual(self.overview(), [])

    def test_a_run_writes_the_overview_beside_its_page_but_does_not_need_it(self):
        self.report(report_of(20))
        self.page()
        self.assertEqual(data_of(self.runs / "index.html")["runs"][0]["name"], "voice")
        refused = PermissionError(13, "Permission denied", str(self.runs / "index.html"))
        with mock.patch("myxtts.report.page.write_overview", side_effect=refused):
            self.assertTrue(self.page(ended="finished").exists())


class Thread(Folder):
    def test_new_reports_are_followed_by_a_page_and_the_last_one_says_how_the_run_ended(self):
        written = []
        news = iter([True])
        report = mock.Mock(read_news=lambda: next(news, False))
        report.write = lambda ended="": written.append(ended) or self.folder
        with PageThread(report, refresh_s=0.001) as thread:
            wait_until(lambda: written)
            self.assertEqual(thread.end("finished"), self.folder)
        self.assertEqual(written, ["", "finished"])
        self.assertNotIn("myxtts-report", [thread.name for thread in threading.enumerate()])

    def test_an_error_of_the_run_is_on_its_page(self):
        self.report(report_of(20))
        with self.assertRaises(ZeroDivisionError), PageThread(self.run_page()):
            1 / 0  # noqa: B018
        self.assertIn("ended by ZeroDivisionError", (self.folder / "report.html").read_text())

    def test_a_full_disk_is_warned_of_once(self):
        report = mock.Mock(write=mock.Mock(side_effect=OSError(28, "No space left on device")))
        with self.assertLogs("myxtts", "WARNING") as logged, PageThread(report) as thread:
            self.assertEqual([thread.end(""), thread.end("")], ["not written"] * 2)
        self.assertEqual(len(logged.output), 1)

    def test_an_unreadable_file_is_warned_of_and_the_page_goes_on(self):
        news = mock.Mock(side_effect=[OSError(5, "Input/output error"), True, *[False] * 1000])
        report = mock.Mock(read_news=news)
        with self.assertLogs("myxtts", "WARNING"), PageThread(report, refresh_s=0.001):
            wait_until(lambda: report.write.called)


@unittest.skipUnless(BROWSER, "no Chromium is installed (apt-get install chromium)")
class Browser(Folder):
    """The page in headless Chromium, from a file."""

    def dump(self, page: str, script: str) -> list:
        """Return the JSON that a script writes to the title of a page, within 4 s of its time."""
        other = self.folder / "probe.html"
        other.write_text(page.replace("</body>", f"<script>{script}</script></body>"))
        flags = "--headless --no-sandbox --disable-gpu --allow-file-access-from-files --dump-dom"
        profile = f"--user-data-dir={self.runs / 'profile'}"
        command = [
            BROWSER,
            *flags.split(),
            "--virtual-time-budget=4000",
            profile,
            f"file://{other}",
        ]
        title = ""
        for _ in range(5):  # on busy cores its time may pass before a picture is decoded
            if not title.startswith("["):
                done = subprocess.run(command, capture_output=True, text=True, timeout=600)
                title = html.unescape(re.search(r"<title>(.*?)</title>", done.stdout)[1])
        return json.loads(title)

    def framed(self, width: int, height: int, script: str) -> list:
        """Return what a script writes about the page in a frame of its own."""
        style = f"width:{width}px;height:{height}px;border:0"
        page = f'<title></title><body><iframe src="report.html" style="{style}"></iframe></body>'
        return self.dump(page, script)

    def texts(self, page: Path, selector: str) -> list[str]:
        """Return the texts of all elements that a page draws for a selector."""
        elements = f"Array.from(document.querySelectorAll({selector!r}))"
        probe = f"document.title = JSON.stringify({elements}.map(e => e.textContent))"
        return self.dump(page.read_text(), probe)

    def assert_texts(self, page: Path, selector: str, *expected: str) -> None:
        texts = self.texts(page, selector)
        for text in expected:
            self.assertIn(text, texts)

    def test_it_draws_plays_and_fits_its_window_without_errors(self):
        self.report(*(report_of(step, validation_loss=1.0) for step in range(10, 90, 10)))
        self.sample(20)
        self.sample(10)
        probe = """
        var errors = [];
        onerror = function (m) { errors.push(m) };
        addEventListener('load', function () { setTimeout(function () {
          document.querySelectorAll('details').forEach(function (e) { e.open = true });
          var images = Array.from(document.images);
          images.forEach(function (i) { i.loading = 'eager' });
          var box = document.querySelector('.plot > svg').getBoundingClientRect();
          document.querySelector('.plot').dispatchEvent(new PointerEvent('pointermove',
            {bubbles: true, clientX: box.left + box.width / 2, clientY: box.top + 5}));
          function decode(i) { return i.decode().then(Object, String) }
          Promise.all(images.map(decode)).then(function () {
            var widths = images.map(function (i) { return i.naturalWidth })
            document.title = JSON.stringify([errors, widths,
              Array.from(document.querySelectorAll('.plot > svg')).every(
                function (s) { return s.clientWidth > 100 }),
              document.documentElement.scrollWidth <= innerWidth,
              document.getElementById('age').textContent.slice(0, 7),
              document.getElementById('tip').textContent,
              document.createElement('audio').canPlayType('audio/mpeg') !== '' ])
          })
        }, 100) });
        """
        found = self.dump(self.page(ended="finished").read_text(), probe)
        tip = "step 50: training 1, validation 1 "
        self.assertEqual(found, [[], [16, 16], True, True, "written", tip, True])

    def test_scales_are_those_of_a_calculation_by_hand(self):
        self.report(report_of(20))
        probe = """
        document.title = JSON.stringify([scale(0, 10).ticks, scale(0.1, 12, true).ticks,
          valueScale([3, 3]).ticks.map(number), [0.8342, 12300.4, 2e-5, 1e300, null].map(number),
          [0.1134, 2.4].map(seconds)])
        """
        expected = [[0, 2.5, 5, 7.5, 10], [0.1, 0.5, 2, 10], ["2.9", "3", "3.1"]]
        expected += [["0.8342", "12,300", "0.00002", "1e+300", "not finite"], ["113 ms", "2.4 s"]]
        self.assertEqual(self.dump(self.page().read_text(), probe), expected)

    def test_each_thread_has_a_lane(self):
        self.report(report_of(20))
        timeline = Timeline()
        timeline.add(
            Span(MODEL, "step", 0.0, 1.0, 1),
            Span("/GPU:2", "produce", 0.0, 0.25, 2),
            Span("/GPU:2", "feed", 0.25, 0.7, 2),
            Span("observer <1>", "validation", 0.1, 0.9),
        )
        lanes = ["/GPU:2: makes batches", "/GPU:2: batches ready in the feed"]
        lanes += ["model device: steps, waits and pauses", "observer <1>"]
        self.assertEqual(self.texts(self.page(timeline), ".lane"), lanes)

    def test_tables_and_texts_of_a_run_are_drawn(self):
        self.report(report_of(20, evaluation_voicing_error=0.1))
        self.tables()
        self.worker()
        scores = "| metric | <x> |\n|---|---|\n| PESQ | 3.1 |\n\n- of 50 & more\n"
        words = ["a <b>", scores, "evaluation voicing error", "tts <tiny>", "worker 1", "0.3"]
        self.assert_texts(self.page(), "td, th, pre, li, dd, p, figcaption > b", *words)

    def test_pages_of_jobs_and_of_all_runs_are_drawn(self):
        self.report(report_of(20, 0.75, validation_loss=0.5, validation_word_error_rate=0.024))
        # A file of another program takes no run from the page.
        (self.folder / "run.json").write_text('{"task": 7, "total_steps": "40", "placement": null}')
        jobs = make_jobs(self.runs / "both")
        words = ("both: independent jobs", "60 of 60", "60 of 20", "12 min", "gpu1")
        self.assert_texts(jobs, "td, th, a, path.mark, h1", *words)
        words = ("7", "20 of 40", "0.75", "0.5", "word error rate 2.4 %", "100.0 %", "both/gpu1")
        self.assert_texts(overview.write_overview(self.runs), "td", *words)

    def test_labels_of_many_steps_are_whole_and_apart_on_a_phone(self):
        self.report(*(report_of(step) for step in range(500, 100_001, 500)))
        probe = """
        document.querySelector('iframe').onload = function () {
          var page = this.contentDocument, labels = 0, cut = 0, touching = 0;
          page.querySelectorAll('.plot > .xs').forEach(function (axis) {
            var end = 0;
            Array.from(axis.children).forEach(function (label) {
              var box = label.getBoundingClientRect();
              labels++; cut += box.left < 0 || box.right > 380
              touching += box.left < end; end = box.right
            })
          });
          var width = page.documentElement.scrollWidth
          document.title = JSON.stringify([labels > 20, cut, touching, width])
        }
        """
        self.page(ended="finished")
        self.assertEqual(self.framed(380, 9000, probe), [True, 0, 0, 380])

    def test_an_open_page_reloads_itself_and_stays_where_it_was(self):
        self.report(*(report_of(step) for step in range(10, 90, 10)))
        self.sample(20)
        self.sample(10)
        probe = """
        var loads = 0, frame = document.querySelector('iframe');
        frame.onload = function () {
          var older = frame.contentDocument.getElementById('step-000010');
          loads++;
          if (loads == 1) { older.open = true; frame.contentWindow.scrollTo(0, 150) }
          else setTimeout(function () {
            document.title = JSON.stringify([loads > 1, older.open, frame.contentWindow.scrollY])
          }, 50)
        }
        """
        with mock.patch.object(run_page, "RELOAD_S", 1.0):
            self.page()
        self.assertEqual(self.framed(800, 600, probe), [True, True, 150])
