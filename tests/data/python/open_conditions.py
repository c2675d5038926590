import torch
from trl import GRPOConfig, GRPOTrainer

memory = torch.cuda.get_device_properties(0).total_memory
if memory > 40e9:
    rows, checkpointing = 16, False
else:
    rows, checkpointing = 4, True
config = GRPOConfig(per_device_train_batch_size=rows, gradient_checkpointing=checkpointing)
if torch.cuda.get_device_capability()[0] >= 8:
    config.max_completion_length = 2048
trainer = GRPOTrainer("Qwen/Qwen3-0.6B", reward_funcs=[len], args=config)
trainer.train()
