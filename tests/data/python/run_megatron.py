import slime.utils.external_utils.command_utils as U

MODEL, TYPE, GPUS = "Qwen3-4B", "small", 8


def execute():
    U.execute_train(
        train_args=f"--hf-checkpoint /root/{MODEL} --ref-load /root/{MODEL}_torch_dist "
        "--rollout-batch-size 8 --n-samples-per-prompt 8 --rollout-max-response-len 8192 --global-batch-size 64 "
        "--tensor-model-parallel-size 2 --sequence-parallel --recompute-granularity full "
        "--recompute-method uniform --recompute-num-layers 1 --use-dynamic-batch-size --max-tokens-per-gpu 9216 "
        f"--actor-num-nodes 1 --actor-num-gpus-per-node {GPUS} --colocate --ci-test",
        num_gpus_per_node=GPUS,
        megatron_model_type=TYPE,
    )


if __name__ == "__main__":
    execute()
