"""Speak and transcribe for other programs: OpenAI's interface, Wyoming and a page.

python utilities/serve_voice.py --model demo_onnx
python utilities/serve_voice.py --run runs/demo --vocoder runs/demo_vocoder
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import serve
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(serve))
