"""Configuration files that list others under `defaults`."""

import unittest

from myxtts.config.load import load
from myxtts.config.schema import Config
from myxtts.errors import ConfigError
from tests.fixtures import FolderCase


class DefaultsTest(FolderCase):
    def load(self, files: dict[str, str], **overrides) -> Config:
        """Load c.yaml beside the other files."""
        for name, text in files.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        return load(self.folder / "c.yaml", overrides)

    def error_of(self, files: dict[str, str]) -> str:
        """Return the error message, without the folder."""
        with self.assertRaises(ConfigError) as caught:
            self.load(files)
        return (
            str(caught.exception).replace(f"{self.folder}/", "").replace(str(self.folder), "FOLDER")
        )

    def test_later_files_override_earlier_and_flags_override_all(self):
        files = {
            "a.yaml": "data: {batch_size: 1, buckets: 1, num_workers: 1, buffer_size: 1}\n",
            "b.yaml": "data: {buckets: 2, num_workers: 2, buffer_size: 2}\n",
            "c.yaml": "data: {num_workers: 3, buffer_size: 3}\ndefaults: [a, b.yaml]\n",
        }
        data = self.load(files, buffer_size=4).data
        actual = (data.batch_size, data.buckets, data.num_workers, data.buffer_size)
        self.assertEqual(actual, (1, 2, 3, 4))

    def test_listed_file_may_list_further_files(self):
        files = {
            "base.yaml": "data: {batch_size: 1, buckets: 1}\n",
            "a.yaml": "defaults: [base]\ndata: {buckets: 2}\n",
            "b.yaml": "defaults: [base]\nmodel: {dropout: 0}\n",
        }
        for listed, buckets in (("[b, a]", 2), ("[a, b]", 1), ("[base, a]", 2), ("[a, base]", 1)):
            with self.subTest(listed):
                config = self.load(files | {"c.yaml": f"defaults: {listed}\n"})
                self.assertEqual((config.data.batch_size, config.data.buckets), (1, buckets))

    def test_file_may_only_list_others(self):
        files = {
            "a.yml": "run: {run: seven}\n",
            "7.yaml": "",
            "x.y.yaml": "training: {ema_decay: 0}\n",
        }
        config = self.load(files | {"c.yaml": "defaults:\n  - a.yml\n  - 7\n  - x.y\n"})
        self.assertEqual((config.run.run, config.training.ema_decay), ("seven", 0.0))
        self.assertEqual(self.load({"c.yaml": "defaults:\n"}), Config())
        self.assertEqual(self.load({"c.yaml": "defaults: []\n"}), Config())

    def test_error_names_the_listed_file_and_line(self):
        composed = "\ndefaults: [a]\nmodel: {dropout: 0}\n"
        for text, message in (
            (
                "data:\n  buckets: 0\n",
                "a.yaml, line 2: buckets is 0, but must be a whole number from 1 to 64.",
            ),
            (
                "data:\n  bucket: 1\n",
                "a.yaml, line 2: 'bucket' is unknown. Did you mean 'buckets'?",
            ),
            ("default: [b]\n", "a.yaml, line 1: 'default' is unknown. Did you mean 'defaults'?"),
            ("- a\n", "a.yaml, line 1: the file must hold lines of the form 'name: value'."),
        ):
            with self.subTest(text):
                self.assertEqual(self.error_of({"a.yaml": text, "c.yaml": composed}), message)
        self.assertEqual(
            self.load(
                {"a.yaml": "data: {buckets: 0}\n", "c.yaml": composed}, buckets=2
            ).data.buckets,
            2,
        )

    def test_error_for_a_missing_file_suggests_the_nearest_name(self):
        files = {"distributed.yaml": "", "default.yaml": ""}
        for listed, hint in (
            ("distribute", "distribute.yaml. Did you mean distributed.yaml? Files in FOLDER: c"),
            ("ასრ", "ასრ.yaml. Files in FOLDER: c.yaml, default.yaml, distributed.yaml."),
        ):
            with self.subTest(listed):
                message = self.error_of(
                    files | {"c.yaml": f"defaults:\n  - default\n  - {listed}\n"}
                )
                place = f"c.yaml, line 1: defaults names '{listed}', but there is no file "
                self.assertTrue(message.startswith(place + hint), message)

    def test_cycle_is_rejected(self):
        self.assertEqual(
            self.error_of({"c.yaml": "defaults: [c]\n"}),
            "c.yaml, line 1: defaults names 'c', which makes a cycle: c.yaml → c.yaml. Remove one"
            " of them.",
        )
        files = {
            "c.yaml": "defaults: [a]\n",
            "a.yaml": "defaults: [b]\n",
            "b.yaml": "\ndefaults: [a.yaml]\n",
        }
        self.assertEqual(
            self.error_of(files),
            "b.yaml, line 2: defaults names 'a.yaml', which makes a cycle: a.yaml → b.yaml →"
            " a.yaml. Remove one of them.",
        )

    def test_malformed_list_is_rejected(self):
        for text, found in (
            ("a", "defaults must be a list"),
            ("{a: b}", "defaults must be a list"),
            ("[[a]]", "there is no file"),
            ("[!!python/name:os.remove a]", "could not determine a constructor for the tag"),
        ):
            with self.subTest(text):
                message = self.error_of({"a.yaml": "", "c.yaml": f"defaults: {text}\n"})
                self.assertIn(found, message)

    def test_a_file_may_be_listed_by_several(self):
        files = {f"f{i}.yaml": f"defaults: [f{i + 1}, f{i + 2}]\n" for i in range(4)}
        files |= {"f4.yaml": "defaults: [f5]\n", "f5.yaml": "data: {buckets: 3}\n"}
        self.assertEqual(self.load(files | {"c.yaml": "defaults: [f0]\n"}).data.buckets, 3)


if __name__ == "__main__":
    unittest.main()
