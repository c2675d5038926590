from dataclasses import dataclass

BASE = "Qwen/Qwen3-1.7B-Base"


@dataclass
class Stage:
    name: str = "sft"
    rows: int = 4

    def tokens(self):
        return {"sft": 512, "grpo": 1 << 10}[self.name]
