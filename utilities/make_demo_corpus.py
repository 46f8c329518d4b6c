"""Make a speech corpus with espeak-ng.

python utilities/make_demo_corpus.py --out data/demo --utterances 400
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import corpus
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(corpus))
