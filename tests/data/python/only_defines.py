"""A library: another file calls train() with the model that it has."""
from trl import GRPOConfig, GRPOTrainer


def train(model, rewards, **options):
    trainer = GRPOTrainer(model=model, reward_funcs=rewards, args=GRPOConfig(**options))
    trainer.train()
    return trainer
