"""The corpus of the voice `base`: what it never has, and how its parts are joined."""

import contextlib
import csv
import io
import json
import re
import sys
from pathlib import Path
from unittest import mock

from tests.fixtures import FolderCase
from utilities.base import corpus

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
