from dataclasses import dataclass, field

from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config


@dataclass
class RunArguments(ScriptArguments):
    answer_tokens: int = field(default=768, metadata={"help": "tokens of an answer"})
    colocate: bool = True


def main(run, training_args, model_args):
    training_args.max_completion_length = run.answer_tokens
    if run.colocate:
        training_args.use_vllm = True
        training_args.vllm_mode = "colocate"
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=["some-org/reward-model-7B"],
        args=training_args,
        peft_config=get_peft_config(model_args),
    )
    trainer.train()


if __name__ == "__main__":
    parser = TrlParser((RunArguments, GRPOConfig, ModelConfig))
    main(*parser.parse_args_and_config())
