"""The worst step of a run, made to happen first: what `headway rehearse` runs in a process of its own.

    python -m headway.train.rehearse RUNSPEC --steps 2 --longest 640 --weights random

It is `headway train`'s own job, with its recorder and its memory settings. Its engine makes every answer as long as
it may be, and only the micro-batches that can hold the most are trained.
"""

import argparse
import ctypes
import json
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from headway.config.fits import held_out
from headway.config.load import dump, load
from headway.config.sections import RunSpec
from headway.config.source import ModelSource, resolve
from headway.config.workload import to_workload
from headway.errors import HeadwayError
from headway.facts import probe, shapes
from headway.guard.read import die_first
from headway.plan.ledger import Phase
from headway.plan.plan import plan
from headway.rollout.full_length import FullLengthEngine, SpreadScorer, lengthened
from headway.rollout.reward_process import PR_SET_PDEATHSIG
from headway.rollout.samples import Sample, collect
from headway.train import memory
from headway.train.evaluate import evaluate
from headway.train.guard import Guarded
from headway.train.job import Job, final_folder, open_job, pick_device
from headway.train.loop import one_step
from headway.train.model import prepare, save_model
from headway.train.output import RunFolder, write_text
from headway.train.run import expected_peaks, opened
from headway.train.stop import Stop, on_signals
from headway.train.tensor_peaks import TensorPeaks

SHORT = 16
"""Response tokens of the samples of a step that is there to make the optimizer's moments."""


def main(arguments: Sequence[str]) -> int:
    """Rehearse a RunSpec, telling of each phase on standard output, a JSON object a line; the exit code."""
    parser = argparse.ArgumentParser(prog="headway.train.rehearse")
    parser.add_argument("runspec", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--longest", type=int, required=True, help="longest sample that may be trained alone")
    parser.add_argument("--weights", choices=("random", "own"), required=True)
    parser.add_argument("--tensors", action="store_true", help="count the tensors of one more step, on the CPU")
    parser.add_argument("--most", type=int, help="bytes that the process may ask the system for")
    asked = parser.parse_args(arguments)
    die_first()
    die_with_parent()
    view = EventView()
    try:
        spec = load(asked.runspec)
        if asked.most is not None and pick_device(spec.memory.device).type == "cpu":
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]  # stays: the reward's process has its own limit
            most = asked.most if hard == resource.RLIM_INFINITY else min(asked.most, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
        rehearse(spec, asked.weights, asked.longest, asked.steps, view, tensors=asked.tensors)
    except HeadwayError as error:
        view.tell("error", text=str(error))
        return error.exit_code
    return 0


def die_with_parent() -> None:
    """End when the process that started this one ends, however it does; Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class EventView:
    """Tells what happens as JSON lines on standard output."""

    def tell(self, event: str, **fields: object) -> None:
        """Write one line, at once."""
        sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
        sys.stdout.flush()

    def phase(self, phase: Phase, step: int) -> None:
        """A phase begins."""
        self.tell("phase", phase=phase, step=step)

    def step(self, metrics: dict[str, float]) -> None:
        """A step is done."""
        self.tell("step", step=metrics["step"], dropped=metrics["dropped"])

    def evaluation(self, step: int, result: dict[str, float]) -> None:
        """An evaluation is done; its result means nothing."""

    def memory(self, used: int) -> None:
        """Who started this process reads its memory."""

    def message(self, text: str) -> None:
        """Something to show."""
        self.tell("message", text=text)

    def notice(self, text: str) -> None:
        """Something that cannot wait."""
        self.message(text)


def rehearse(
    spec: RunSpec, weights: str, longest: int, steps: int, view: EventView, *, tensors: bool = False
) -> None:
    """Run the steps, an evaluation, a checkpoint and the final save in `output.dir`, which has to be new.

    `tensors`: afterwards a step and an evaluation whose tensors are counted, on the CPU.

    InputError for what cannot be loaded, LimitReachedError where memory ran out.
    """
    assert spec.output.dir is not None, "who starts a rehearsal sets it"
    memory.configure()
    folder, stop = RunFolder(spec.output.dir), Stop()
    folder.claim()
    with opened(folder), on_signals(stop):
        source = rehearsed_source(spec, weights, view)
        machine = probe.detect(spec.memory.limit)
        ledger = plan(to_workload(spec, source), machine)
        if source.folder is None and spec.model.init == "pretrained":
            spec = without_tokenizer(spec, folder, view)
        write_text(folder.runspec, dump(spec))
        planned = Guarded(None, {pool: ledger.upper(pool) for pool in ledger.pools()})
        with open_job(
            spec, source, machine, expected_peaks(ledger), planned, longest, folder, view, stop
        ) as job:  # fmt: skip
            make_long(job)
            for step in range(1, steps + 1):
                rehearse_step(job, step, full=step > 1 or steps == 1)
            evaluate(job, steps)
            job.save()
            final_folder(job, save_model)
            if tensors and steps > 1 and job.how.device.type == "cpu":
                job.recorder = TensorPeaks(job.recorder)
                rehearse_step(job, steps + 1, full=True)
                evaluate(job, steps + 1)


def rehearsed_source(spec: RunSpec, weights: str, view: EventView) -> ModelSource:
    """The model as it is rehearsed: its own files, or random weights with its tokenizer if that is here."""
    source = resolve(spec.model)
    shape = source.shape or shapes.by_name(source.path)
    if weights == "own" or source.kind == "package" or shape is None:
        source = prepare(source, view.message)
        shape = source.shape
    if weights == "own":
        return source
    return ModelSource("random", source.path, source.folder, shape, 0)


def without_tokenizer(spec: RunSpec, folder: RunFolder, view: EventView) -> RunSpec:
    """The RunSpec with problems and a reward that need no tokenizer of the model: its files are not here."""
    view.tell("note", text="the model's files are not here: a byte-level tokenizer, made-up problems, reward exact")
    problems = folder.root / "problems.jsonl"
    count = spec.data.problems + held_out(spec.eval.problems, None)
    write_text(problems, "".join(f'{{"prompt": "{at}", "label": "{at}"}}\n' for at in range(count)))
    data = spec.data.model_copy(
        update={
            "task": None, "params": {}, "file": problems, "prompt_key": "prompt", "label_key": "label",
            "format": "text", "template": "{prompt}",
        }
    )  # fmt: skip
    evaluation = spec.eval.model_copy(update={"file": None})
    reward = spec.reward.model_copy(update={"kind": "exact", "function": None, "extract": "whole", "pattern": None})
    return spec.model_copy(update={"data": data, "eval": evaluation, "reward": reward})


def make_long(job: Job) -> None:
    """Put full-length answers, full-length prompts and spread rewards in the place of the run's own."""
    spec = job.spec
    job.engine.close()
    job.engine = FullLengthEngine(job.model, job.tokenizer, spec.rollout.kv_budget, job.how.device)
    job.stop.interrupt = job.engine.abort
    job.scorer = SpreadScorer(job.scorer)
    job.problems = lengthened(job.problems, spec.data.max_prompt, spec.rollout.prompts)


def rehearse_step(job: Job, step: int, *, full: bool) -> None:
    """One step: the whole rollout, then training on as few samples as make its largest micro-batches.

    A step that is not `full` is there for the optimizer's moments, and trains on short answers.
    """
    spec = job.spec
    with job.phase(Phase.ROLLOUT, step):
        rollout = collect(
            job.engine, job.scorer, job.problems.train,
            samples=spec.rollout.samples, params=job.sampling, seed=spec.train.seed, step=step,
        )  # fmt: skip
        job.stop.check()
    updates, samples = spec.train.updates, spec.rollout.samples
    share = spec.rollout.prompts // updates * samples
    longest = spec.data.max_prompt + spec.rollout.max_answer
    lengths = sample_lengths(share, longest, spec.train.cap, spec.data.max_prompt) if full else []
    prompts = max(1, -(-len(lengths) // samples))  # whole groups
    short = spec.data.max_prompt + min(SHORT, spec.rollout.max_answer)
    lengths += [short] * (prompts * samples - len(lengths))
    per_update = [cut(sample, length) for sample, length in zip(rollout, lengths, strict=False)]
    job.progress.rollout = tuple(per_update * updates)
    whole = spec.rollout.model_copy(update={"prompts": prompts * updates})
    job.spec = spec.model_copy(update={"rollout": whole})
    try:
        one_step(job)  # goes on after the rollout, which it finds done; the rest of it stays alive meanwhile
    finally:
        job.spec = spec


def sample_lengths(count: int, longest: int, cap: int, prompt: int) -> list[int]:
    """Tokens of the samples, of at most `count`, that make the largest micro-batches that can be.

    First two of full-length samples, so that one comes while there are gradients; then one of slightly shorter
    samples that fills `cap` better, where there is such. `prompt` tokens of each sample are its prompt.

    >>> sample_lengths(64, 1500, 4096, 500), sample_lengths(64, 1024, 4096, 24), sample_lengths(64, 1500, 512, 500)
    ([1500, 1500, 1500, 1500, 1365, 1365, 1365], [1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024], [1500, 1500])
    """
    rows = max(1, cap // longest)
    more = rows + 1
    filling = [cap // more] * more
    if not rows * longest < sum(filling) <= cap or filling[0] <= prompt or count < rows + more:
        filling = []
    full = min(2 * rows, count - len(filling))
    if filling:  # a last group of full-length samples that is not whole would take shorter ones in
        full = full // rows * rows
    return [longest] * full + filling


def cut(sample: Sample, tokens: int) -> Sample:
    """The sample with its answer cut so that it has so many tokens in all."""
    keep = tokens - len(sample.prompt_ids)
    return replace(sample, response_ids=sample.response_ids[:keep], sampler_logprobs=sample.sampler_logprobs[:keep])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
