"""A job: the parts of one run, opened together and closed together. The loop reads and moves them."""

import gc
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from msgspec import to_builtins
from safetensors import SafetensorError
from torch import Tensor, nn

from headway.config.accept import Accept
from headway.config.adapter import problems as problems_of_adapter
from headway.config.sections import RunSpec
from headway.config.source import ModelSource
from headway.errors import HeadwayError, InputError
from headway.facts.context import too_long
from headway.facts.machine import Machine
from headway.facts.workload import DTYPE_BYTES
from headway.guard.forecast import Forecast
from headway.guard.frame import Action
from headway.guard.recorder import Recorder
from headway.plan.ledger import Phase
from headway.rollout.allocation import asked_bytes, first_line
from headway.rollout.data import Problem, ProblemSet
from headway.rollout.engine import Engine, SamplingParams
from headway.rollout.hf import HfEngine
from headway.rollout.inputs import enough
from headway.rollout.kvplan import sequences_in_flight
from headway.rollout.rewards import Scorer, make_scorer
from headway.rollout.samples import Sample, right, share_correct
from headway.train import checkpoint
from headway.train.checkpoint import Progress
from headway.train.content import content_of, held_at_start, model_digests
from headway.train.device import CudaMeter
from headway.train.failures import Failure, PoolState, give_back, naming_failures, pool_state
from headway.train.guard import Guarded, Watch, action_line
from headway.train.lora import add_adapters, fill_adapters
from headway.train.memory import trim
from headway.train.metrics import Writers
from headway.train.model import LoadedModel, load, set_checkpointing
from headway.train.optim import AdamW
from headway.train.output import RunFolder, append
from headway.train.record import check_base
from headway.train.resume import last_of, mark_of, problems_of, restore
from headway.train.smaller import CAP, KV_BUDGET, sentence, smaller, still, value_of
from headway.train.stop import Place, Stop
from headway.train.unscored import heed_failures
from headway.train.update import Accumulated, Pass
from headway.train.wall import Wall

WALLED = frozenset({Phase.ROLLOUT, Phase.EVAL, Phase.SCORE, Phase.TRAIN})
"""Phases in which an allocation that fails is split and tried again."""


class View(Protocol):
    """Who watches a run. `reports.live` has one for terminals and one for plain streams."""

    def phase(self, phase: Phase, step: int) -> None: ...
    def step(self, metrics: dict[str, float]) -> None: ...
    def evaluation(self, step: int, result: dict[str, float]) -> None: ...
    def memory(self, used: int) -> None: ...
    def message(self, text: str) -> None: ...
    def notice(self, text: str) -> None: ...


@dataclass
class Job:
    """Everything that the loop uses. `mark` tells whose checkpoint it is; `progress` and `how` change; `kept` is the
    step of the last checkpoint, None without one; `saved` where the last save of this process stood."""

    spec: RunSpec
    machine: Machine
    folder: RunFolder
    model: nn.Module
    tokenizer: Any
    reference: nn.Module | None
    engine: Engine
    scorer: Scorer
    problems: ProblemSet
    optimizer: AdamW
    recorder: Recorder
    writers: Writers
    view: View
    stop: Stop
    how: Pass
    longest_allowed: int
    progress: Progress
    mark: dict[str, Any]
    seconds_before: float
    opened_at: float
    watch: Watch
    wall: Wall
    longest_answer: int
    kept: int | None
    saved: tuple[int, int, int] | None = None
    largest_batch: int = 0
    stepping: bool = False
    split_in_a_row: int = 0
    told_in_step: int = 0
    begun_at: int = 0

    @property
    def sampling(self) -> SamplingParams:
        """How training answers are sampled."""
        rollout = self.spec.rollout
        return SamplingParams(
            rollout.max_answer, rollout.temperature, rollout.top_p, rollout.top_k, tuple(rollout.stop)
        )

    @property
    def optimizer_steps(self) -> int:
        """Optimizer steps of the whole run."""
        return self.spec.train.steps * self.spec.train.updates

    @contextmanager
    def phase(self, phase: Phase, step: int) -> Iterator[None]:
        """Record a phase; afterwards freed memory goes back to the system, so that the next peak is its own."""
        self.view.phase(phase, step)
        self.watch.at(phase, step)
        self.stop.place = self.place(phase)
        wall = self.wall.around() if phase in WALLED else nullcontext()
        with self.recorder.phase(phase, step), naming_failures(phase, self.pool_state), wall:
            yield
            gc.collect()
            trim()

    def place(self, phase: Phase) -> Place:
        """Where the run is in a phase that begins: what a stop in it would save."""
        progress, closing = (
            self.progress,
            phase == Phase.STEP and self.progress.updates + 1 == self.spec.train.updates,
        )
        return Place(
            phase, progress.step + closing, self.kept, answers=bool(progress.rollout) and not closing,
            last=progress.step == self.spec.train.steps,
        )  # fmt: skip

    def check(self) -> None:
        """Before each micro-batch: StopRequested where someone asked to stop; `memory.limit` by what is held now."""
        self.stop.check()
        self.wall.move()

    def pool_state(self) -> PoolState | None:
        """The pool that the model lives in, as it is now."""
        return pool_state(self.machine, self.how.device)

    def failed(self, failure: Failure) -> None:
        """Record an allocation that failed; show the first of a step, and each sample that is dropped."""
        pool, step = self.pool_state(), self.progress.step + 1
        self.recorder.note("failure", {"t": round(time.time(), 3), "step": step, **asdict(failure)})
        if self.told_in_step != step or not failure.left:
            self.told_in_step = step
            self.view.message(f"step {step}: {failure.text(pool)}")

    def learn_from(self, passes: Accumulated) -> None:
        """Halve the cap for the rest of the run where memory ran out over a micro-batch in two updates in a row."""
        self.largest_batch = passes.largest
        self.split_in_a_row = 0 if passes.failed is None else self.split_in_a_row + 1
        if passes.failed is not None and self.split_in_a_row > 1:
            self.shrink_cap(passes.failed // 2, "memory ran out over larger ones in two updates in a row")

    def shrink_cap(self, cap: int, reason: str) -> None:
        """Train the rest of the run in smaller micro-batches: the same gradient."""
        if cap < self.how.cap:
            self.how = replace(self.how, cap=max(1, cap))
            self._is_smaller(CAP, self.how.cap, reason)

    def _is_smaller(self, key: str, now: int, reason: str) -> None:
        """Keep it with the next checkpoint, record it and show it."""
        self.progress.smaller[key] = smaller(self.spec, key, now)
        tell_smaller(self.recorder, self.view, key, self.progress, reason)

    def heed(self) -> None:
        """Do what the guard decided, where the run may be saved; StopRequested where it or a signal asked to stop."""
        for action in self.watch.take():
            if action.name == "free":
                give_back()
            elif action.name == "checkpoint":
                self.save()
            elif action.name == "shrink":
                self.shrink_cap(min(self.how.cap, self.largest_batch or self.how.cap) // 2, "the guard")
                self._is_smaller(KV_BUDGET, self.engine.shrink(self.longest_answer), "the guard")
                self.save()  # a run that is killed later must not begin again with what was too large
        self.stop.check()

    def heed_failures(self, samples: Sequence[Sample], phase: Phase) -> None:
        """Warn where half of the answers could not be scored.

        RewardsFailedError where those are most of this process's first step, or all of the evaluation before it.
        """
        step = self.progress.step
        stops: Literal["never", "all", "most"] = "all" if phase is Phase.EVAL else "most"
        where = f"step {step + 1}" if phase is Phase.ROLLOUT else f"the evaluation after {step} steps"
        warning = heed_failures(samples, where, self.spec.reward, stops if step == self.begun_at else "never")
        if warning is not None:
            self.view.message(warning)

    @contextmanager
    def changing_weights(self) -> Iterator[None]:
        """Inside, and after an exception from there, weights and optimizer belong to no step: nothing is saved."""
        self.stepping = True
        yield
        self.stepping = False

    def rescue(self) -> None:
        """Memory ran out for good: save what is whole, if that much memory is left."""
        self.drop_gradients()
        if not self.stepping:
            give_back()
            with suppress(HeadwayError):
                self.save()

    def elapsed(self) -> float:
        """Seconds of the whole run, resumes included, from the end of each load."""
        return self.seconds_before + time.monotonic() - self.opened_at

    def due(self, every: int) -> bool:
        """Whether something done every N steps is due after the current one."""
        return every > 0 and self.progress.step % every == 0

    def part(self, kept: Sequence[int], update: int) -> list[int]:
        """The kept samples of one optimizer step: its even share of the step's prompts."""
        share = self.spec.rollout.prompts // self.spec.train.updates * self.spec.rollout.samples
        return [index for index in kept if index // share == update]

    def parameters(self) -> dict[str, Tensor]:
        """The trained parameters by name, each once."""
        return {name: value.detach() for name, value in self.model.named_parameters() if value.requires_grad}

    def save(self, *, again: bool = True) -> None:
        """Write a checkpoint of where the run stands; without `again` only where the last one stands elsewhere."""
        progress = self.progress
        now = (progress.step, progress.updates, len(progress.rollout))
        if now == self.saved and not again:
            return
        with self.phase(Phase.SAVE, self.progress.step):
            checkpoint.save(
                self.folder.checkpoints, self.progress, self.mark, self.parameters(),
                self.optimizer.state_dict(), keep=self.spec.output.keep,
            )  # fmt: skip
        self.kept, self.saved = progress.step, now

    def drop_gradients(self) -> None:
        """Forget the gradients of an unfinished optimizer step."""
        self.model.zero_grad(set_to_none=True)

    def memory_peaks(self) -> dict[Phase, int]:
        """Peak resident bytes of the latest pass through each phase."""
        return self.recorder.latest()

    def write_step(self, record: dict[str, float], samples: Sequence[Sample]) -> None:
        """Record a finished step everywhere."""
        self.writers.step(record)
        self.view.step(record)
        self.write_samples(Phase.ROLLOUT, int(record["step"]), samples)

    def write_samples(self, phase: Phase, step: int, samples: Sequence[Sample]) -> None:
        """Keep a few answers to look at, each beside its problem."""
        problems = self.problems.held_out if phase is Phase.EVAL else self.problems.train
        full_known = share_correct(samples) is not None
        shown = samples[: self.spec.output.rollouts]
        rows = [sample_row(each, problems[each.prompt], right(each) if full_known else None) for each in shown]
        for row in rows:
            append(self.folder.rollouts, {"step": step, "phase": phase} | row)
        if rows:
            self.writers.samples(phase, step, rows)


def sample_row(sample: Sample, problem: Problem, correct: bool | None) -> dict[str, Any]:
    """A sample as rollouts.jsonl has it; `prompt` is the problem's text there, `problem` its index."""
    row = asdict(sample)
    del row["prompt"], row["text"]
    shown = {"problem": sample.prompt, "prompt": problem.prompt, "label": problem.label, "response": sample.text}
    return shown | {"correct": correct} | row


@contextmanager
def open_job(
    spec: RunSpec,
    source: ModelSource,
    machine: Machine,
    expected: Mapping[Phase, int],
    guarded: Guarded,
    longest_allowed: int,
    folder: RunFolder,
    view: View,
    stop: Stop,
    accepted: Collection[Accept] = (),
) -> Iterator[Job]:
    """Load everything, resume from the last checkpoint if there is one, and close it all at the end."""
    device = pick_device(spec.memory.device)
    if spec.memory.threads:
        torch.set_num_threads(spec.memory.threads)
    checkpoint.sweep(folder.checkpoints)
    with ExitStack() as stack:
        recorder = stack.enter_context(
            Recorder(
                folder.recording, machine, expected, CudaMeter(device) if device.type == "cuda" else None,
                on_reading=view.memory,
            )
        )  # fmt: skip
        watch = stack.enter_context(_watch(spec, machine, guarded, recorder, view, stop))
        watch.at(Phase.LOAD, 0)
        view.phase(Phase.LOAD, 0)
        with recorder.phase(Phase.LOAD, 0), naming_failures(Phase.LOAD, lambda: pool_state(machine, device)):
            folders = () if spec.reward.folder is None else (spec.reward.folder,)
            scorer = stack.enter_context(
                closing(make_scorer(spec.reward, spec.data, folders, folder.reward_log, stop.check))
            )
            watch.rewards = scorer.pids
            digests = model_digests(source)
            check_base(source, digests)
            loaded = load(source, spec.model, device, spec.train.seed, merge_adapter=spec.lora is None)
            reference = _frozen_copy(source, spec, device)
            before = last_of(folder)
            problems = problems_of(spec.data, spec.eval, loaded.tokenizer, spec.train.seed, before)
            longest_answer = _check(problems, loaded, spec)
            scorer.check((*problems.train, *problems.held_out))
            model = _trainable(loaded, spec, source.adapter)
            trainable = {name: value for name, value in model.named_parameters() if value.requires_grad}
            optimizer = AdamW(
                trainable, betas=spec.train.betas, eps=spec.train.eps, weight_decay=spec.train.weight_decay
            )
            held = held_at_start(spec.eval) if before is None else before.content.held
            content = content_of(spec, digests, problems, held)
            progress = restore(folder, spec, content, accepted, trainable, optimizer, view)
            progress.smaller = still(progress.smaller, spec)
            for key in progress.smaller:
                tell_smaller(recorder, view, key, progress, "as before the resume; another value of it ends this")
            cap, kv_budget = (value_of(key, spec, progress.smaller) for key in (CAP, KV_BUDGET))
            engine = HfEngine(model, loaded.tokenizer, kv_budget, device, on_failure=_tell_of(recorder, watch, view))
            stack.callback(engine.close)
            stop.interrupt = engine.abort
            engine.update_weights(progress.optimizer_steps)
            writers = stack.enter_context(closing(Writers(folder, spec.output)))
            gc.collect()
            gc.freeze()  # what stays need not be looked through after each phase: a quarter second each time
            stack.callback(gc.unfreeze)
            trim()
        pad = loaded.tokenizer.pad_token_id
        yield Job(
            spec=spec, machine=machine, folder=folder, model=model, tokenizer=loaded.tokenizer, reference=reference,
            engine=engine, scorer=scorer, problems=problems, optimizer=optimizer, recorder=recorder, writers=writers,
            view=view, stop=stop, watch=watch, wall=_wall(spec, device, recorder, scorer),
            longest_answer=longest_answer, longest_allowed=longest_allowed, progress=progress,
            mark=mark_of(spec, content), begun_at=progress.step, seconds_before=progress.seconds,
            opened_at=time.monotonic(), kept=progress.step if checkpoint.folders(folder.checkpoints) else None,
            how=Pass(spec.rollout.temperature or 1.0, spec.train.logprob_chunk, cap, pad or 0, device),
        )  # fmt: skip


def pick_device(wanted: str) -> torch.device:
    """`auto` is the first CUDA device if there is one, else the CPU. InputError where "cuda" is not there."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise InputError(
            'memory.device = "cuda": torch sees no CUDA device here; set memory.device = "cpu" or "auto"'
        )
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


@contextmanager
def closing(thing: Any) -> Iterator[Any]:
    """Close at the end."""
    try:
        yield thing
    finally:
        thing.close()


def _trainable(loaded: LoadedModel, spec: RunSpec, adapter: Path | None) -> nn.Module:
    model: nn.Module = loaded.model
    if spec.lora is not None:
        adapted = add_adapters(loaded.model, spec.lora, spec.train.seed)
        if adapter is not None:
            wrong = problems_of_adapter(spec.model.path, adapter, loaded.shape.family, spec.lora)
            if wrong:
                raise InputError(*wrong)
            fill_adapters(adapted, adapter)
        model = adapted
    set_checkpointing(model, spec.train.checkpointing)
    model.train()
    return model


def _frozen_copy(source: ModelSource, spec: RunSpec, device: torch.device) -> nn.Module | None:
    """A reference model of its own, only where the objective needs one and adapters cannot give it."""
    if spec.objective.kl_coef == 0 or spec.lora is not None:
        return None
    return load(source, spec.model, device, spec.train.seed).model.eval().requires_grad_(False)


def _check(problems: ProblemSet, loaded: LoadedModel, spec: RunSpec) -> int:
    """What can only be checked once the problems are there; the most tokens of a prompt with its answer."""
    enough(problems, spec)
    prompt = max(len(problem.prompt_ids) for problem in (*problems.train, *problems.held_out))
    longest = prompt + spec.rollout.max_answer
    if (beyond := too_long(loaded.shape.name, loaded.shape.context, prompt, spec.rollout.max_answer)) is not None:
        raise InputError(beyond)
    sequences_in_flight(loaded.shape, DTYPE_BYTES[spec.model.dtype], spec.rollout.kv_budget, longest)
    return longest


def tell_smaller(recorder: Recorder, view: View, key: str, progress: Progress, reason: str) -> None:
    """Record and show that a setting is smaller than the RunSpec's."""
    each = progress.smaller[key]
    row = {"t": round(time.time(), 3), "step": progress.step, "key": key, "now": each.now, "set": each.set}
    recorder.note("smaller", row | {"reason": reason})
    view.message(f"{sentence(key, each.now)}: {reason}")


def _tell_of(recorder: Recorder, watch: Watch, view: View) -> Callable[[int, BaseException], None]:
    """Record an allocation that failed over several answers, and show the first in each phase."""
    told: set[str | None] = set()

    def failed(answers: int, error: BaseException) -> None:
        phase, step = watch.where
        row = {"asked": asked_bytes(error), "samples": answers, "reason": first_line(error)}
        recorder.note("failure", {"t": round(time.time(), 3), "step": step, "phase": phase, **row})
        if phase not in told:
            told.add(phase)
            view.message(
                f"step {step}: phase {phase}: memory ran out over {answers} answers at once ({first_line(error)}). "
                "They are generated again in two parts. Set a smaller rollout.kv_budget"
            )

    return failed


def _watch(spec: RunSpec, machine: Machine, guarded: Guarded, recorder: Recorder, view: View, stop: Stop) -> Watch:
    """The guard of this run: it records and shows each action, and of forecasts the first that ends the run early."""

    def decided(action: Action) -> None:
        recorder.note("action", to_builtins(action))
        view.message(action_line(action))

    told: set[tuple[str, str]] = set()

    def foreseen(forecast: Forecast) -> None:
        recorder.note("forecast", to_builtins(forecast))
        key, reached = (forecast.pool, forecast.gauge), forecast.expected
        if key not in told and reached is not None and reached.step is not None and reached.step <= spec.train.steps:
            told.add(key)
            view.message(f"forecast: {forecast.sentence}")

    return Watch(spec.guard, machine, guarded, decided, foreseen, stop.ask)


def _wall(spec: RunSpec, device: torch.device, recorder: Recorder, scorer: Scorer) -> Wall:
    """The wall of this run: none where the guard may only warn, nor beside CUDA, whose driver maps what it likes."""
    acts = spec.guard.policy != "observe" and not spec.guard.dry
    limit = spec.memory.limit if acts and device.type == "cpu" else None
    return Wall(limit, lambda: recorder.children, scorer.pids)


def final_folder(job: Job, write: Callable[[Any, Any, Path], None]) -> Path:
    """Write the trained model or adapter as a folder that transformers or peft loads."""
    try:
        with job.phase(Phase.SAVE, job.progress.step):
            write(job.model, job.tokenizer, job.folder.final)
    except (OSError, SafetensorError) as error:
        raise HeadwayError(f"{job.folder.final}: not written ({error}); the last checkpoint is kept") from error
    return job.folder.final
