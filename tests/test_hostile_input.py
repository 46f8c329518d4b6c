"""Hostile input ends in success or in one message, within a time, and opens nothing outside of its
folders.

Each property below was found by benchmarks/hostile_input.py; the last class runs a few of its
cases.
"""

import io
import json
import logging
import os
import sys
import time
import unicodedata
import unittest
import warnings
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from unittest import mock

import numpy as np
import soundfile
from pydantic import ValidationError

from benchmarks.hostile import audio, case
from benchmarks.hostile.case import MARK, draw_of, run_case
from benchmarks.hostile.texts import is_spoken
from benchmarks.hostile_input import add_opens
from myxtts.commands.console import report_errors
from myxtts.commands.synthesize import MAX_TEXT_BYTES, read_text
from myxtts.config.load import MAX_BYTES, load
from myxtts.data import metadata_file, recording
from myxtts.data.audio_file import BLOCK_SAMPLES, read_pcm, to_pcm
from myxtts.data.audio_folder import AudioFolder
from myxtts.data.audio_header import UnusableAudio, read_header
from myxtts.data.manifest import MAX_TEXT_CHARACTERS, Vocabulary
from myxtts.data.metadata_file import MAX_LINE_CHARACTERS, read_corpus
from myxtts.data.recording import check_recording, read_recording
from myxtts.data.texts import read_texts
from myxtts.errors import CheckpointError, ConfigError, DataError
from myxtts.observe.run_log import RunLog
from myxtts.printable import printable
from myxtts.synthesis.reference import read_reference
from myxtts.text import espeak
from myxtts.text.frontend import normalise_text, symbols_of
from myxtts.text.sentences import split_text
from myxtts.text.symbols import SymbolTable
from myxtts.training.checkpoint_files import read_arrays, read_metadata
from myxtts.training.checkpoint_metadata import check_types
from tests.fixtures import temporary_folder

CASES = {"metadata": 20, "yaml": 30, "texts": 20}
LIMIT_S = 30.0  # of what took minutes


class FolderCase(unittest.TestCase):
    def setUp(self):
        self.folder = temporary_folder(self.addCleanup)

    def write(self, name: str, content: str | bytes = "") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def pipe(self) -> Path:
        path = self.folder / "pipe"
        os.mkfifo(path)
        return path


class Console(FolderCase):
    def test_what_a_terminal_would_act_on_is_escaped(self):
        for text, shown in (
            ("a\x1b[2Jb", "a\\x1b[2Jb"),
            ("a\rb\x85", "a\\rb\\x85"),
            ("gpj\u202e.wav", "gpj\\u202e.wav"),
            ("\udcff\ud800", "\\udcff\\ud800"),
            ("\u2028", "\\u2028"),
            ("line\n\tline", "line\n\tline"),
            ("می\u200cخواهم ძველი 👍🏿\u00a0é", "می\u200cخواهم ძველი 👍🏿\u00a0é"),
        ):
            with self.subTest(text=ascii(text)):
                self.assertEqual(printable(text), shown)

    def test_names_that_are_not_utf8_are_logged_and_reported(self):
        name = os.fsdecode(b"\xff\x1b.wav")
        package = logging.getLogger("myxtts")
        before = package.handlers, package.level, package.propagate
        self.addCleanup(
            lambda: (
                setattr(package, "handlers", before[0]),
                setattr(package, "propagate", before[2]),
            )
        )
        self.addCleanup(package.setLevel, before[1])

        def program() -> int:
            package.warning("file %s", name)
            raise DataError(f"{name} cannot be read.")

        out, errors = (
            io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)
        )
        with redirect_stdout(out), redirect_stderr(errors):
            self.assertEqual(report_errors(program), 2)
        self.assertEqual(out.buffer.getvalue(), b"file \\udcff\\x1b.wav\n")
        self.assertEqual(errors.buffer.getvalue(), b"error: \\udcff\\x1b.wav cannot be read.\n")

    def test_names_that_are_not_utf8_reach_the_log_file(self):
        with redirect_stderr(io.StringIO()) as errors, RunLog() as run_log:
            run_log.open(self.folder / "log.txt")
            logging.getLogger("myxtts").error("file %s", os.fsdecode(b"\xff"))
        self.assertEqual(errors.getvalue(), "")
        self.assertIn("file \\udcff", (self.folder / "log.txt").read_text(encoding="utf-8"))


class Configuration(FolderCase):
    def error_of(self, path: Path) -> str:
        with self.assertRaises(ConfigError) as caught:
            load(path)
        return str(caught.exception)

    def test_a_long_list_is_not_proposed_whole(self):
        path = self.write("c.yaml", f"placement:\n  model_gpus: {['1'] * 1_000}\n")
        self.assertLess(len(self.error_of(path)), 1_000)

    def test_a_pipe_does_not_block(self):
        self.assertIn(
            "it is a pipe or a device, and no file. Give another file.", self.error_of(self.pipe())
        )

    def test_an_escape_of_no_character_is_broken_yaml(self):
        for escape in (r"\U00110000", r"\UFFFFFFFF"):
            with self.subTest(escape):
                self.assertIn(
                    "broken YAML",
                    self.error_of(self.write("c.yaml", f'run: {{run: "{escape}"}}\n')),
                )

    def test_the_size_is_bounded_over_all_files(self):
        filler = "#" * (MAX_BYTES // 3) + "\n"
        for number in range(3):
            self.write(f"b{number}.yaml", filler)
        main = self.write("c.yaml", "defaults: [b0, b1]\n")
        load(main)
        self.write("c.yaml", "defaults: [b0, b1, b2]\n")
        self.assertIn(
            "too large for a configuration (over 64 KiB, with the files that it lists)",
            self.error_of(main),
        )

    def test_a_listed_file_is_no_link_out_of_the_folder(self):
        secret = self.write("elsewhere/secret.yaml", "data: {buckets: 3}\n")
        main = self.write("configs/c.yaml", "defaults: [base]\n")
        base = main.with_name("base.yaml")
        base.symlink_to(secret)
        self.assertIn("Copy the file there.", self.error_of(main))
        base.unlink()
        self.write("configs/versions/1.yaml", "data: {buckets: 3}\n")
        base.symlink_to("versions/1.yaml")
        self.assertEqual(load(main).data.buckets, 3)


class Text(FolderCase):
    def test_a_pipe_does_not_block_and_a_file_is_bounded(self):
        with self.assertRaisesRegex(DataError, "it is a pipe or a device"):
            read_text(None, self.pipe())
        with self.assertRaisesRegex(DataError, "it is a pipe or a device"):
            read_text(None, Path("/dev/zero"))
        large = self.write("large.txt")
        os.truncate(large, MAX_TEXT_BYTES + 1)
        with self.assertRaisesRegex(DataError, "it is larger than 5 MB"):
            read_text(None, large)
        with (
            open("/dev/zero", "rb") as zeros,
            mock.patch.object(sys, "stdin", mock.Mock(buffer=zeros)) as stdin,
        ):
            stdin.isatty.return_value = False
            with self.assertRaisesRegex(DataError, "stdin .* larger than 5 MB"):
                read_text(None, None)

    def test_espeak_gets_no_long_number_with_dots(self):
        for text, given in (
            ("1." * 15 + "1, 192.168.100.100", "1 " * 15 + "1, 192.168.100.100"),
            ("3.14159265358979323846 ", "3.14159265358979323846 "),
        ):
            self.assertEqual(espeak._utf8(text).decode(), given)
        self.assertTrue(symbols_of("1." * 500, "ka", "phonemes"))

    def test_a_text_without_a_break_is_split_in_linear_time(self):
        text = "a" * 1_000_000
        began_s = time.process_time()
        self.assertEqual("".join(chunk.text for chunk in split_text(text)), text)
        self.assertLess(time.process_time() - began_s, LIMIT_S)

    def test_sentences_for_a_teacher_that_are_too_long_are_left_out(self):
        path = self.write("texts.txt", "a b\n" + "a" * (MAX_TEXT_CHARACTERS + 1))
        vocabulary = Vocabulary(SymbolTable(("a", "b", " ")), ("one",), ("en",))
        self.assertEqual(len(read_texts(path, "en", "characters", symbols_of, vocabulary, 99)), 1)

    def test_normalisation_takes_linear_time(self):
        for text, normalised in (
            (
                "e" + "\u0323\u0301" * 50_000 + " a",
                unicodedata.normalize("NFC", "e" + "\u0323\u0301" * 15) + " a",
            ),
            ("a" + " \u00ad" * 50_000 + "b", "a b"),
        ):
            began_s = time.process_time()
            self.assertEqual(normalise_text(text), normalised)
            self.assertLess(time.process_time() - began_s, LIMIT_S)


class Metadata(FolderCase):
    def error_of(self, content: str | bytes) -> str:
        path = self.write("metadata.csv", content)
        with self.assertRaises(DataError) as caught:
            read_corpus(path, "en")
        self.assertLess(len(str(caught.exception)), 2_000)
        return str(caught.exception)

    def test_a_line_of_megabytes_is_rejected_by_its_number(self):
        message = self.error_of("path,text\na.wav,a\n" + "," * (MAX_LINE_CHARACTERS + 1))
        self.assertIn("line 3 of ", message)
        self.assertIn("1,048,577 characters", message)

    def test_a_file_is_read_up_to_its_first_nul(self):
        path = self.write("metadata.csv", "path,text\n")
        os.truncate(path, 1 << 40)
        with self.assertRaisesRegex(DataError, "it is binary or UTF-16"):
            read_corpus(path, "en")
        with (
            mock.patch.object(metadata_file, "MAX_BYTES", 0),
            self.assertRaisesRegex(DataError, "may have 0. Split"),
        ):
            read_corpus(self.write("metadata.csv", "path,text\na.wav,a\n"), "en")

    def test_a_name_longer_than_any_path_is_a_malformed_row(self):
        self.write("a.wav")
        rows = read_corpus(
            self.write("metadata.csv", f"path,text\na.wav,a\n{'a/' * 50_000},b\n"), "en"
        )
        self.assertEqual([row.audio for row in rows.rows], ["a.wav"])
        self.assertIn("a path of 100,000 characters", rows.rejected[0].detail)
        self.assertLess(len(rows.rejected[0].audio), 1_000)
        self.error_of(f"path,text\n{'a/' * 50_000},b\n")

    def test_metadata_that_is_no_file_is_named(self):
        os.mkfifo(self.folder / "metadata.csv")
        with self.assertRaisesRegex(
            DataError, "metadata.csv is a folder, a pipe, a device or a link to nothing"
        ):
            read_corpus(self.folder, "en")

    def test_no_folder_is_listed_through_a_link_that_leaves_the_corpus(self):
        self.write("outside/a.wav")
        self.write("corpus/b.wav")
        (self.folder / "corpus" / "link").symlink_to(self.folder / "outside")
        folder = AudioFolder(self.folder / "corpus")
        with mock.patch.object(os, "listdir", side_effect=os.listdir) as listed:
            self.assertEqual(
                [folder.find(name) for name in ("link/a.wav", "link/x.wav", "b.wav")],
                ["link/a.wav", None, "b.wav"],
            )
        self.assertEqual(
            [os.path.basename(os.path.normpath(call.args[0])) for call in listed.call_args_list],
            ["corpus"],
        )

    def test_a_speaker_whose_folder_is_not_utf8_has_a_name_that_can_be_written(self):
        self.write(f"corpus/{os.fsdecode(b'caf%c' % 0xE9)}/a.wav")
        rows = read_corpus(self.folder / "corpus", "en", needs_text=False)
        self.assertEqual([row.speaker for row in rows.rows], [r"caf\xe9"])

    def test_file_names_that_are_not_utf8_can_be_held_out(self):
        for name in (b"\xff.wav", b"\xfe.wav"):
            self.write(f"corpus/{os.fsdecode(name)}")
        rows = read_corpus(self.folder / "corpus", "en", needs_text=False)
        self.assertEqual([len(part.rows) for part in metadata_file.hold_out(rows, 0.5, 0)], [1, 1])


class Audio(FolderCase):
    def sound(self, name: str, seconds: float, rate_hz: int) -> Path:
        wave = np.random.default_rng(0).normal(0, 0.1, round(seconds * rate_hz))
        soundfile.write(self.folder / name, wave, rate_hz, subtype="PCM_16")
        return self.folder / name

    def test_a_promised_length_that_is_another_takes_no_memory(self):
        path = self.sound("a.flac", 0.5, 22_050)
        data = bytearray(path.read_bytes())
        data[21] |= 0x0F  # the length has 36 bits in STREAMINFO
        data[22:26] = b"\xff" * 4
        path.write_bytes(data)
        with self.assertRaisesRegex(
            DataError, "has 68719476735 samples at 22050 Hz, but had 11025"
        ):
            read_pcm(path, 11_025)

    def rejected(self, path: Path) -> str:
        with self.assertRaises(UnusableAudio) as caught:
            read_header(str(path))
        return str(caught.exception)

    def test_an_mp3_file_that_is_positioned_elsewhere_is_rejected(self):
        data = bytearray(audio.sound_of("sound.mp3"))
        data[3331:3334] = b"\xed\x49\xde"  # a frame becomes one of another layer and rate
        self.assertIn("truncated", self.rejected(self.write("a.mp3", bytes(data))))

    def test_a_vorbis_file_with_damaged_codebooks_does_not_end_the_process(self):
        data = bytearray(audio.sound_of("vorbis.ogg"))
        data[data.index(b"\x05vorbis") + 100] ^= 0xFF
        path = self.write("a.ogg", audio.with_checksums(bytes(data), serial=1))
        self.assertIn("truncated", self.rejected(path))

    def test_a_compressed_file_that_ends_in_zeros_is_not_searched(self):
        for name in ("vorbis.ogg", "opus.ogg", "sound.flac"):
            path = self.write(name, audio.sound_of(name))
            read_header(str(path))
            os.truncate(path, 1 << 40)
            self.assertIn("truncated: the last 65,536 bytes are zeros", self.rejected(path))

    def test_names_that_are_not_utf8_reach_libsndfile(self):
        name = os.fsdecode(b"\xff.flac")
        self.assertEqual(
            read_header(str(self.write(name, audio.sound_of("sound.flac")))).samples, 16_800
        )

    def test_the_largest_floats_are_read_without_an_overflow(self):
        for rate_hz in (22_050, 16_000):
            path = self.folder / "a.wav"
            soundfile.write(path, np.full((100, 2), 3e38), rate_hz, subtype="FLOAT")
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                self.assertEqual(read_pcm(path).max(), 32_767)
        soundfile.write(path, np.full(100, 1e300), rate_hz, subtype="DOUBLE")
        with self.assertRaisesRegex(DataError, "not finite"):
            check_recording(path, "recording", 0.001, "")

    def test_of_a_reference_only_the_beginning_is_decoded(self):
        path = self.sound("a.flac", 4.0, 16_000)
        whole = read_recording(path, "reference", 0.5, "")
        with mock.patch.object(
            soundfile.SoundFile, "read", autospec=True, side_effect=soundfile.SoundFile.read
        ) as read:
            beginning = read_reference(path, 22_050)
        np.testing.assert_array_equal(beginning, whole[:22_050])
        self.assertEqual(
            sum(call.args[1] for call in read.call_args_list if call.args[1] > 1), 2 * 16_000
        )

    def test_a_recording_of_days_is_rejected_by_its_header(self):
        path = self.sound("a.wav", 1.5, 22_050)
        with (
            mock.patch.object(recording, "MAX_RECORDING_S", 1.0),
            self.assertRaisesRegex(DataError, "Split it"),
        ):
            read_recording(path, "recording", 0.1, "")
        soundfile.write(path, np.zeros(33_000), 22_050, subtype="FLOAT")
        with (
            mock.patch.object(recording, "MAX_RECORDING_S", 1.0),
            mock.patch.object(recording, "check_finite") as check_finite,
            self.assertRaisesRegex(DataError, "Split it"),
        ):
            check_recording(path, "recording", 0.1, "")
        check_finite.assert_not_called()

    def test_only_a_block_of_all_channels_is_in_memory(self):
        wave = np.random.default_rng(0).uniform(-0.5, 0.5, (70_000, 6)).astype(np.float32)
        path = self.folder / "a.wav"
        soundfile.write(path, wave, 22_050, subtype="FLOAT")
        with mock.patch.object(
            soundfile.SoundFile, "read", autospec=True, side_effect=soundfile.SoundFile.read
        ) as read:
            samples = read_pcm(path)
        np.testing.assert_array_equal(samples, to_pcm(wave.mean(axis=1)))
        self.assertLessEqual(max(call.args[1] for call in read.call_args_list), BLOCK_SAMPLES)
        wave[69_999, 5] = np.inf
        soundfile.write(path, wave, 22_050, subtype="FLOAT")
        with self.assertRaisesRegex(DataError, "not finite"):
            read_pcm(path)


class Checkpoint(FolderCase):
    def test_a_long_name_in_an_archive_is_not_quoted_whole(self):
        with zipfile.ZipFile(self.folder / "model.npz", "w") as archive:
            archive.writestr("x" * 60_000, b"no array")
        with self.assertRaises(CheckpointError) as caught:
            read_arrays(self.folder / "model.npz")
        self.assertLess(len(str(caught.exception)), 1_000)

    def test_a_long_format_is_not_quoted_whole(self):
        self.write("step-1/state.json", json.dumps({"format": "x" * 60_000}))
        with self.assertRaises(CheckpointError) as caught:
            read_metadata(self.folder / "step-1")
        self.assertLess(len(str(caught.exception)), 1_000)

    def test_of_many_values_of_another_type_one_is_an_error(self):
        for values in (
            '"symbols": [[], []]',
            '"observing": [[1, [1, 1]], 1]',
            '"position": [0, 0, [1, 1]]',
        ):
            with self.assertRaises(ValidationError) as caught:
                check_types(f"{{{values}}}")
            self.assertEqual(caught.exception.error_count(), 1, values)
        with self.assertRaisesRegex(ValidationError, "it has 10,001 entries"):
            check_types(json.dumps({"missed_syncs": {str(number): "" for number in range(10_001)}}))


class Detectors(FolderCase):
    """The driver notices what it looks for."""

    def faults_of(self, call: Callable[[], object]) -> list[str]:
        with mock.patch.object(case, "prepare", return_value=call):
            return case.run_case("yaml", 0, 0, self.folder).faults

    def open_pipe(self) -> None:
        path = self.folder / "case" / "corpus" / "pipe"
        os.mkfifo(path)
        path.read_bytes()

    def test_each_fault_is_found(self):
        def fail(error: BaseException) -> None:
            raise error

        def open_outside() -> None:
            with suppress(OSError):
                os.listdir(self.folder)
            (self.folder / "case" / "corpus" / "link").symlink_to(self.folder / "secret")
            with suppress(OSError):
                open(self.folder / "case" / "corpus" / "link", "w").close()

        for call, fault in (
            (lambda: fail(ValueError("x")), "traceback: ValueError: 'x' at "),
            (lambda: fail(DataError("")), "short message"),
            (lambda: fail(DataError("word " * 1_000)), "long message"),
            (lambda: print("a\x1b[2J"), "control characters in the console"),
            (lambda: print("word", file=sys.stderr), "message without an error"),
            (open_outside, "to write"),
            (open_outside, "opened: os.listdir"),
            (self.open_pipe, "hang: not done after"),
            (lambda: time.sleep(0.3), "slow: "),
        ):
            limits = {"hang": {"HANG_S": 0.5}, "slow": {"LIMIT_S": 0.2}}.get(
                fault.partition(":")[0], {}
            )
            with (
                self.subTest(fault),
                mock.patch.multiple(case, **{"HANG_S": 120.0, "LIMIT_S": 60.0} | limits),
            ):
                faults = self.faults_of(call)
                self.assertTrue(any(fault in found for found in faults), faults)
        self.assertEqual(
            self.faults_of(lambda: (self.folder / "case" / "runs" / "a").write_text("a")), []
        )

    def test_opens_of_c_libraries_are_in_the_trace(self):
        base = os.path.realpath(self.folder)
        trace = self.write(
            "trace",
            f"""7 openat(AT_FDCWD</>, "{MARK}/yaml/3", O_RDONLY|O_CLOEXEC) = -1 ENOENT (No such file or directory)
7 openat(AT_FDCWD</>, "a.wav", O_RDONLY) = 5<{base}/case/corpus/a.wav>
8 openat(AT_FDCWD</>, "/dev/null", O_RDONLY) = 5</dev/null<char 1:3>>
8 openat(AT_FDCWD</>, "link", O_RDONLY <unfinished ...>
8 <... openat resumed>)             = 6<{base}/case/outside/secret.wav>
8 openat(AT_FDCWD</>, "/etc/passwd", O_RDONLY) = 7</etc/passwd>
7 openat(AT_FDCWD</>, "{MARK}/yaml/end", O_RDONLY|O_CLOEXEC) = -1 ENOENT (No such file or directory)
7 openat(AT_FDCWD</>, "/etc/hosts", O_RDONLY) = 5</etc/hosts>
""",
        )
        outcome = case.Outcome("yaml", 3)
        add_opens([outcome], trace, base)
        self.assertEqual(
            outcome.faults,
            [
                f"opened, by strace: {path!r}"
                for path in (f"{base}/case/outside/secret.wav", "/etc/passwd")
            ],
        )


class Cases(FolderCase):
    """A few cases of a fixed seed; `python benchmarks/hostile_input.py` runs 7,500."""

    def test_cases_end_in_success_or_in_one_message(self):
        for kind, count in CASES.items():
            for number in range(count):
                if kind == "texts" and is_spoken(draw_of(kind, number, 0)):
                    continue
                slow = mock.patch.multiple(case, LIMIT_S=LIMIT_S, HANG_S=4 * LIMIT_S)
                with self.subTest(f"--repeat {kind}:{number}"), slow:
                    self.assertEqual(run_case(kind, number, 0, self.folder).faults, [])


if __name__ == "__main__":
    unittest.main()
