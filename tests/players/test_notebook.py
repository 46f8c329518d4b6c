"""The notebook for Colab runs from the corpus to a sound, with a few steps of training."""

import os
import sys
import unittest
from pathlib import Path
from unittest import mock

import nbclient
import nbformat

from tests.fixtures import temporary_folder

ROOT = Path(__file__).parents[2]
LIMIT_S = 1200


class NotebookTest(unittest.TestCase):
    def test_every_cell_runs_and_the_last_one_is_a_sound(self):
        notebook = nbformat.read(ROOT / "examples/first_voice.ipynb", as_version=4)
        install, *cells = (cell for cell in notebook.cells if cell.cell_type == "code")
        self.assertEqual(install.metadata.tags, ["install"])
        self.assertEqual(cells[0].metadata.tags, ["parameters"])
        cells[0].source = "utterances, steps = 20, 2"
        notebook.cells = cells
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        folder = str(temporary_folder(self.addCleanup))
        with mock.patch.dict(os.environ, PATH=path, PYTHONPATH=str(ROOT)):
            client = nbclient.NotebookClient(notebook, timeout=LIMIT_S)
            client.execute(cwd=folder)
        lines = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
        self.assertIn("step      2", lines)
        self.assertIn("data:audio/wav", cells[-1].outputs[-1]["data"]["text/html"])
