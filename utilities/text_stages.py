"""Print each stage of a text: normalised, with the readings of a lexicon, and as phonemes.

python utilities/text_stages.py "It costs $5." --language en
python utilities/text_stages.py "Es kostet 5 €." --run runs/german
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import text
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(text))
