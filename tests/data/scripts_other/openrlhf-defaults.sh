# Next to nothing is given.
python -m openrlhf.cli.train_ppo_ray --pretrain ${BASE_MODEL} --vllm_num_engines ${ENGINES:-2} \
  --remote_rm_url /workspace/reward.py --prompt_data json@/data
