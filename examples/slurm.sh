#!/bin/bash
# Train with a worker for each task: sbatch examples/slurm.sh --train-data CORPUS --run NAME
# Options of sbatch go before the name of this file and win over these.
#SBATCH --job-name=voice
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=1
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120    # 2 to 3 minutes before the time limit: the workers save and end with 143
#SBATCH --requeue            # a node that fails
#SBATCH --open-mode=append

srun python train_main.py --resume "$@"
code=$?

# 143: stopped by SIGTERM, after a checkpoint. 137, 138: a task was killed, a worker lost another one.
# Any other code is the end of the run, or a mistake that would come again.
case $code in
    137 | 138 | 143)
        # The number of an array is also that of its last job, but would restart all of them.
        job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
        if [ "${SLURM_RESTART_COUNT:-0}" -lt 100 ]; then
            scontrol requeue "${job:-$SLURM_JOB_ID}"
        fi
        ;;
esac
exit $code
