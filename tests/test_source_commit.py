"""The commit of a source tree, with and without git."""

import shutil
import subprocess
import unittest
from unittest import mock

from myxtts.training import source_commit as module
from myxtts.training.source_commit import source_commit
from tests.fixtures import temporary_folder


class SourceCommitTest(unittest.TestCase):
    def setUp(self):
        self.root = temporary_folder(self.addCleanup)
        self.addCleanup(source_commit.cache_clear)

    def git(self, *arguments: str) -> str:
        command = [
            "git",
            "-C",
            str(self.root),
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            *arguments,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def test_a_folder_that_is_no_checkout_has_none(self):
        self.assertEqual(source_commit(self.root), "")

    @unittest.skipUnless(shutil.which("git"), "needs git")
    def test_changed_files_are_told_with_git_and_not_verified_without(self):
        self.git("init", "--quiet")
        file = self.root / "file"
        file.write_text("committed")
        self.git("add", "file")
        self.git("commit", "--quiet", "--no-verify", "--no-gpg-sign", "--message", "first")
        commit = self.git("rev-parse", "HEAD")[:12]
        self.assertEqual(source_commit(self.root), commit)
        source_commit.cache_clear()
        file.write_text("changed")
        self.assertEqual(source_commit(self.root), f"{commit}-dirty")
        source_commit.cache_clear()
        with mock.patch.object(module.subprocess, "run", side_effect=FileNotFoundError):
            self.assertEqual(source_commit(self.root), f"{commit}-unverified")

    def test_packed_references_and_linked_worktrees_are_read_without_git(self):
        git, linked = self.root / ".git", self.root / "linked"
        worktree = git / "worktrees" / "linked"
        worktree.mkdir(parents=True)
        linked.mkdir()
        (git / "HEAD").write_text("ref: refs/heads/main\n")
        (git / "packed-refs").write_text(
            f"# packed\n{'a' * 40} refs/heads/main\n{'b' * 40} refs/heads/other\n"
        )
        (linked / ".git").write_text(f"gitdir: {worktree}\n")
        (worktree / "HEAD").write_text("ref: refs/heads/other\n")
        (worktree / "commondir").write_text("../..\n")
        with mock.patch.object(module.subprocess, "run", side_effect=FileNotFoundError):
            self.assertEqual(source_commit(self.root), f"{'a' * 12}-unverified")
            self.assertEqual(source_commit(linked), f"{'b' * 12}-unverified")


if __name__ == "__main__":
    unittest.main()
