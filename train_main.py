"""Train a voice, a speech recogniser or a vocoder.

python train_main.py                                                   a first run, on the demo
corpus python train_main.py --simulate-gpus 2 --data-gpu 0 --model-gpu 1      two devices, on a
machine without a GPU python train_main.py --train-data CORPUS --data-gpu 0 --model-gpu 1    batches
on GPU 0, training on GPU 1 python train_main.py --config configs/dual_gpu.yaml --batch-size 24
settings from a file, and a flag over them python train_main.py --config runs/my_voice/config.yaml
--resume       continue the run `my_voice` python train_main.py --help
every setting

Exit codes: 0 done, 2 a mistake that the message explains, 1 a defect, 130, 143 and 129 stopped
after saving.
"""

import sys

from myxtts.commands import train
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(train))
