"""Read and decode batches for training runs in other processes or on other machines.

python utilities/data_service.py dispatcher
python utilities/data_service.py worker --dispatcher 127.0.0.1:5050
python train_main.py --train-data CORPUS --data-service grpc://127.0.0.1:5050
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands import serve_data
from myxtts.commands.main import run_script

if __name__ == "__main__":
    sys.exit(run_script(serve_data))
