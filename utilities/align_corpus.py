"""Find when the words of a corpus are spoken, and the texts that do not fit their recordings.

python utilities/align_corpus.py --run runs/ljspeech --train-data /corpora/LJSpeech-1.1 --out times
python utilities/align_corpus.py --run runs/ljspeech --train-data talk.srt --times srt --out times
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import align
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(align))
