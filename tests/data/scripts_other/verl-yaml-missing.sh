#!/bin/bash
python3 -m verl.trainer.main_ppo --config-path=/opt/private/config --config-name=secret_grpo \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
    actor_rollout_ref.rollout.n=4
