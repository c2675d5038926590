"""What trainers and platforms print where a run ends without a death: it came to its end, or it was asked to stop.

Wordings: transformers' Trainer, Lightning, Megatron-LM, Ray's job client, kubectl, docker compose, Slurm, headway.
"""

from headway.diagnose.sign import Sign

SIGNS = (
    Sign(
        "run-finished",
        "well",
        (
            "train_runtime",
            "training completed",
            "training complete",
            "training finished",
            "training done",
            "training is done",
            "training has finished",
            "training was completed",
            "trainer.fit` stopped",
            "' succeeded",
            "reason: completed",
            "reason:       completed",
            " exited with code 0",
            ", finished",
        ),
        r"\btrain_runtime['\"]?\s*[:=]|"
        r"\btraining (?:is |was |has )?(?:completed?|finished|done)(?: successfully)?\W*"
        r"(?:$|Do not forget|Saving|(?:in|after) \d)|"
        r"\[after training is done\] datetime|`Trainer\.fit` stopped: `max_(?:epochs|steps)=|"
        r"\bJob '\S+' succeeded|^\s*Reason: +Completed\s*$|^[\w.-]{1,60}-\d+ exited with code 0$|"
        r"^run +\d+ steps? in .{1,40}, finished\s*$",
        says="the run came to its end by itself, as its trainer or its platform says",
    ),
    Sign(
        "run-asked-to-stop",
        "end",
        ("; the same command resumes", "black box: asked to stop"),
        r"^run +\d+ steps? in .{1,40}, stopped by (?P<name>SIG(?:INT|TERM|HUP)); the same command resumes|"
        r"black box: asked to stop by (?P<by>SIG\w+)",
        says="the run was asked to stop, by Ctrl-C or a signal that it handles, and left in an orderly way",
    ),
    Sign(
        "exit-130",
        "end",
        ("exit code", "exit status", "exited with", "returncode", "return code", "rc=", "exited (", "exit_code"),
        r"(?:exit(?:ed)?(?: with)?(?:[ _]code| status)?|returncode|return code|rc|status)\W{0,4}(?:130|-2)\b",
        says="SIGINT (128 + 2), as Ctrl-C sends it",
    ),
)
