"""Make a voice of a corpus: inspect it, train a vocoder and a voice, and measure them.

python utilities/make_voice.py --train-data /corpora/my_voice --run mine
python utilities/make_voice.py --train-data /corpora/my_voice --run mine --data-gpu 0 --model-gpu 1
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import voice
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(voice))
