import yaml
from trl import GRPOConfig, GRPOTrainer

settings = yaml.safe_load(open("/etc/site/train.yaml"))
lengths = [len(row) for row in open("data.txt")]
args = GRPOConfig(
    per_device_train_batch_size=int(settings["batch"]),
    max_completion_length=max(lengths),
    num_generations=4,
)
trainer = GRPOTrainer("Qwen/Qwen3-0.6B", reward_funcs=[len], args=args)
trainer.train()
