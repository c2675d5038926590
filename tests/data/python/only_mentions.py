# from trl import GRPOConfig, GRPOTrainer
# GRPOTrainer(model="Qwen/Qwen3-0.6B", args=GRPOConfig()).train()
"""GRPOTrainer(model="Qwen/Qwen3-0.6B").train()"""
import json

print(json.dumps({"trainer": "GRPOTrainer"}))
