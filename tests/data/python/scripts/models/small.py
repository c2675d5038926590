import os


def model_args(layers: int | None = None) -> str:
    layers = layers if layers is not None else int(os.environ.get("MODEL_ARGS_NUM_LAYERS") or 36)
    return (
        "--swiglu "
        f"--num-layers {layers} "
        "--hidden-size 2560 --ffn-hidden-size 9728 --num-attention-heads 32 "
        "--group-query-attention --num-query-groups 8 --kv-channels 128 --qk-layernorm --vocab-size 151936 "
        f"--rotary-base {os.environ.get('MODEL_ARGS_ROTARY_BASE') or '1000000'} "
    )
