"""Train a voice, a speech recogniser or a vocoder.

python train_main.py                                                 the demo corpus, one device
python train_main.py --simulate-gpus 2 --data-gpu 0 --model-gpu 1    two devices, without a GPU
python train_main.py --train-data CORPUS --data-gpu 0 --model-gpu 1  batches on GPU 0, model on 1
python train_main.py --config configs/dual_gpu.yaml --batch-size 24  a file, and a flag over it
python train_main.py --run NAME --resume                             continue the run NAME
python train_main.py --help                                          every setting

Exit codes: 0 done, 2 a mistake that the message explains, 1 a defect, 130, 143 and 129 stopped
after saving.
"""

import sys

from myxtts.commands import train
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(train))
