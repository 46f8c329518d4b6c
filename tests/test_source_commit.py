"""The commit of a source tree, with and without git."""

import shutil
import subprocess
import unittest
from unittest import mock

from myxtts.run import description
from myxtts.run.description import source_commit
from tests.fixtures import temporary_folder


class SourceCommitTest(unittest.TestCase):
    def setUp(self):
        self.root = temporary_folder(self.addCleanup)

    def git(self, *arguments: str) -> str:
        user = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(self.root), *user, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def test_a_folder_that_is_no_checkout_has_none(self):
        self.assertEqual(source_commit(self.root), "")

    @unittest.skipUnless(shutil.which("git"), "needs git")
    def test_changed_files_are_named_and_without_git_there_is_no_commit(self):
        self.git("init", "--quiet")
        file = self.root / "file"
        file.write_text("committed")
        self.git("add", "file")
        self.git("commit", "--quiet", "--no-verify", "--no-gpg-sign", "--message", "first")
        commit = self.git("rev-parse", "HEAD")[:12]
        self.assertEqual(source_commit(self.root), commit)
        file.write_text("changed")
        self.assertEqual(source_commit(self.root), f"{commit}-dirty")
        with mock.patch.object(description.subprocess, "run", side_effect=FileNotFoundError):
            self.assertEqual(source_commit(self.root), "")
