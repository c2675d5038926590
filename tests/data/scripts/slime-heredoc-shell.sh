#!/bin/bash
# The commands are fed to another shell.
WORKERS=2
sbatch <<EOF
#!/bin/bash
#SBATCH --nodes=$WORKERS
#SBATCH --gpus-per-node=8
TP=4
python3 train.py --hf-checkpoint /m/Dense-32B --actor-num-nodes $WORKERS --tensor-model-parallel-size \$TP \\
  --rollout-batch-size 32 --n-samples-per-prompt 8 --colocate
EOF
