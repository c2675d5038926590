"""The run came to its end by itself."""

from headway.diagnose.rules.rule import Rule

RULE = Rule(
    name="finished",
    level="mechanism",
    tier=5,
    sees="The summary of `headway train` that says so, exit code 0 in a black box, or the last words of a trainer or "
    "platform: 'train_runtime', 'Training completed', \"Job 'raysubmit_...' succeeded\".",
    why="The steps that were asked for are done.",
    sure="Proven by headway's own summary of the same process and by exit code 0 where no process of the run ended "
    "badly; supported by a trainer's last words, where no later line names a step or an end.",
    look_alikes="Exit code 0 of a pipe or of `ray job submit` hides a death behind it: an end in the log stands "
    "above it. The words of a first stage are none where steps follow.",
    example="step 100: {'loss': 0.5}\n{'train_runtime': 120.1, 'train_samples_per_second': 3.2, 'train_loss': 0.61}",
    near_miss="{'train_runtime': 120.1, 'train_samples_per_second': 3.2}\nTraceback (most recent call last):\n  File "
    '"/home/me/train.py", line 9, in <module>\n    trainer.save_model()\nOSError: [Errno 28] No space left on device',
    refuters=("a line below it that tells of an end", "steps that follow"),
    ends={"run-finished": "supported"},
)
