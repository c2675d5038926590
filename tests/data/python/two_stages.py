from settings_beside import BASE, Stage
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

warm = Stage(rows=8)
SFTTrainer(BASE, args=SFTConfig(per_device_train_batch_size=warm.rows, max_length=4096)).train()
main = Stage(name="grpo")
GRPOTrainer(
    "checkpoints/Qwen3-1.7B",
    reward_funcs=[len],
    args=GRPOConfig(per_device_train_batch_size=main.rows, max_completion_length=main.tokens()),
).train()
