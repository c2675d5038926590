"""Miles, FSDP: the training command is put together here."""
import os
from dataclasses import dataclass

import typer

import miles.utils.external_utils.command_utils as U


@dataclass
class ScriptArgs(U.ExecuteTrainConfig):
    model_name: str = "Qwen3-4B"
    num_gpus_per_node: int | None = None
    hardware: str = "H100"
    rollouts: int = 300
    extra_args: str = ""

    def __post_init__(self):
        self.num_gpus_per_node = self.num_gpus_per_node or U.NUM_GPUS_OF_HARDWARE[self.hardware]


def execute(args: ScriptArgs):
    batch_args = (
        f"--num-rollout {args.rollouts} "
        "--rollout-batch-size 16 "
        "--n-samples-per-prompt 8 "
        f"--rollout-max-response-len {1024 * 4} "
        "--global-batch-size 128 "
    )
    if args.hardware == "H100":
        batch_args += "--max-tokens-per-gpu 9216 --use-dynamic-batch-size "
    else:
        batch_args += "--max-tokens-per-gpu 16384 --use-dynamic-batch-size "
    track_args = "--use-wandb " if os.environ.get("WANDB_API_KEY") else ""
    U.execute_train(
        train_args=f"--hf-checkpoint /root/models/{args.model_name} {batch_args} {track_args} --train-backend fsdp "
        f"--actor-num-nodes {args.num_nodes} --actor-num-gpus-per-node {args.num_gpus_per_node} --colocate "
        f"--sglang-mem-fraction-static 0.5 --save /root/ckpt/{U.create_run_id()} {args.extra_args}",
        config=args,
        num_gpus_per_node=args.num_gpus_per_node,
        megatron_model_type=None,
    )


@U.dataclass_cli
def main(args: ScriptArgs):
    execute(args)


if __name__ == "__main__":
    typer.run(main)
