"""The same flag with two values."""

from collections.abc import Iterator

from headway.foreign.lint.rule import HYDRA, Given, Rule, Sighting, Subject

MAY_REPEAT = frozenset({"env", "e", "eval-prompt-data", "custom-config-path", "set", "config"})


def find(subject: Subject) -> Iterator[Sighting]:
    """Flags of the training command that are given more than once with different values."""
    given: dict[str, list[Given]] = {}
    for each in subject.given:
        if each.values and each.name not in MAY_REPEAT:
            given.setdefault(each.name, []).append(each)
    dashes = "" if subject.system in HYDRA else "--"
    for name, all_of_it in given.items():
        texts = [each.text for each in all_of_it]
        if len(set(texts)) < 2 or None in texts:
            continue
        lines = [f"{text} (line {each.written.line})" if each.written else str(text) for each, text in
                 zip(all_of_it, texts, strict=True)]  # fmt: skip
        last = all_of_it[-1]
        yield Sighting(
            f"{dashes}{name} is given {len(texts)} times: {', then '.join(lines)}; {texts[-1]} holds", last.written
        )


RULE = Rule(
    name="flag-twice",
    severity="warning",
    title="a flag that is given twice",
    sees="the training command has the same flag, or the same Hydra key, with different values.",
    why="the last one holds, wherever it comes from: an array that is put in later, a sourced file, or the command "
    "line itself; who reads or changes the first one is misled",
    example="ARGS=(--max-tokens-per-gpu 4096)\n"
    "python3 train.py --rollout-batch-size 8 --max-tokens-per-gpu 9216 ${ARGS[@]}",
    instead="keep one of them",
    near_miss="ARGS=(--max-tokens-per-gpu 4096)\n"
    "python3 train.py --rollout-batch-size 8 --max-tokens-per-gpu 4096 ${ARGS[@]}",
    not_this="the same value twice changes nothing, and flags that collect values may be repeated.",
    find=find,
)
