"""headway: reinforcement learning for language models in the memory you have."""

__version__ = "0.1.0"
