"""Find the clips of a corpus that would harm a voice.

python utilities/inspect_corpus.py --train-data /corpora/my_voice
python utilities/inspect_corpus.py --train-data /corpora/my_voice --run runs/my_voice
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import inspect
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(inspect))
