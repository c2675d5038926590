"""How long a run takes: from the data sheet of a device, from a core's rate, from earlier runs on this machine."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from headway.facts import machines, speeds
from headway.facts.machine import Machine
from headway.facts.shapes import table
from headway.facts.speeds import Rate, device_speed
from headway.facts.workload import Lora, Workload
from headway.foreign.presets import workload
from headway.plan.plan import plan
from headway.plan.time import Estimate, estimate

GB10 = machines.by_name("gb10").without_ray()
OWN = Rate(
    "qwen3-0.6B", table()["qwen3-0.6b"].active_parameters(), "cpu", "fp32", False, 100.0, 50.0, "2026-01-31", 40_000
)


def run(model: str = "qwen3-0.6b", trainer: str = "headway", **settings: object) -> Workload:
    return workload(table()[model], trainer, [f"{key.replace('__', '.')}={value}" for key, value in settings.items()])


def timed(work: Workload, machine: Machine = GB10) -> Estimate | None:
    return estimate(work, machine, plan(work, machine))


def on_cpu(**fields: object) -> Workload:
    base = run(steps=100)
    trainer = replace(base.trainer, param_dtype="fp32", **fields)
    return replace(base, device="cpu", threads=2, trainer=trainer)


CPU = Machine("here", machines.by_name("cpu-64gib").pools, 2)


def test_every_device_of_the_table_has_a_speed():
    without = [name for name in machines.names() if device_speed(name) is None]
    assert len(without) * 2 < len(machines.names())
    assert not {"gb10", "h100-80", "8xh100-80", "2x8xh200", "rtx4090", "b200"} & set(without)
    assert device_speed("here") is None


def test_training_takes_as_long_as_its_flops():
    # 64 samples of 1,536 tokens: forward, backward and recomputation at a quarter of 989 TFLOP/s
    found = timed(run("qwen3-4b"), machines.by_name("h100-80"))
    assert found is not None
    plain = 64 * 1536 * 4.02e9 * 8 / (989e12 * 0.25)
    assert plain < found.train < 1.2 * plain
    assert found.step == found.rollout + found.train
    adapters = timed(run("qwen3-4b", "headway-lora"), machines.by_name("h100-80"))
    assert adapters is not None
    assert adapters.train == pytest.approx(found.train * 6 / 8)


def test_decoding_is_bound_by_the_weights_that_are_read():
    fast, slow = (timed(run("qwen3-8b", "slime"), machines.by_name(name)) for name in ("8xh100-80", "8xh20"))
    assert fast is not None
    assert slow is not None
    assert slow.rollout < fast.rollout  # more bandwidth
    assert slow.train > fast.train  # far fewer FLOPs


def test_more_devices_take_less_time_and_more_answers_more():
    one, two = (
        timed(run("qwen3-4b", "verl-fsdp", layout__devices=count), machines.by_name("8xh100-80")) for count in (4, 8)
    )
    more = timed(run("qwen3-4b", "verl-fsdp", layout__devices=8, rollout__prompts=512), machines.by_name("8xh100-80"))
    assert one is not None
    assert two is not None
    assert more is not None
    assert two.train == pytest.approx(one.train / 2)
    assert more.step > two.step


def test_an_engine_that_runs_beside_the_trainer_hides_the_shorter_part():
    work = run("qwen3-4b", "slime")
    machine = machines.by_name("8xh100-80")
    ledger = plan(work, machine)
    both = estimate(work, machine, ledger)
    beside = estimate(replace(work, mode="async"), machine, ledger)
    assert both is not None
    assert beside is not None
    assert beside.step == max(both.rollout, both.train)


def test_fine_tuning_generates_nothing():
    found = timed(run("llama3-8b", "qlora"), machines.by_name("rtx4090"))
    assert found is not None
    assert found.rollout == 0


def test_earlier_runs_of_the_machine_come_first():
    work = on_cpu()
    guess, known = timed(work, CPU), timed(work, replace(CPU, rates=(OWN,)))
    assert guess is not None
    assert known is not None
    assert (guess.factor, known.factor) == (4.0, 1.5)
    assert known.rollout == 64 * 1024 / 100
    assert known.train == 64 * 1536 / 50
    assert known.run == pytest.approx(100 * known.step)


@pytest.mark.parametrize(
    ("answered", "factor"), [(0, 3.0), (10_000, 3.0), (20_000, 1.5), (250_000, 1.5), (300_000, 3.0)]
)
def test_a_rate_of_much_smaller_or_larger_steps_is_less_sure(answered: int, factor: float):
    known = timed(on_cpu(), replace(CPU, rates=(replace(OWN, answered=answered),)))
    assert known is not None
    assert known.factor == factor


def test_runs_of_another_kind_say_nothing():
    work = on_cpu(lora=Lora(16, "all-linear"))
    assert timed(work, replace(CPU, rates=(OWN,))) == timed(work, CPU)


def test_a_model_of_another_size_is_scaled_and_less_sure():
    other = replace(OWN, model="smaller", parameters=OWN.parameters // 2)
    known, scaled = (timed(on_cpu(), replace(CPU, rates=(rate,))) for rate in (OWN, other))
    assert known is not None
    assert scaled is not None
    assert scaled.factor > known.factor
    assert scaled.step == pytest.approx(2 * known.step)
    tiny = replace(OWN, model="tiny", parameters=OWN.parameters // 5)
    assert timed(on_cpu(), replace(CPU, rates=(tiny,))) == timed(on_cpu(), CPU)


def test_where_nothing_tells_there_is_no_time():
    assert timed(run(), replace(GB10, name="someone's machine")) is None
    assert timed(on_cpu(), replace(CPU, cores=0)) is None


def test_a_run_of_unknown_length_has_a_time_for_a_step_alone():
    known, unknown = timed(run(steps=40)), timed(run())
    assert known is not None
    assert unknown is not None
    assert known.run == pytest.approx(40 * known.step)
    assert (unknown.step, unknown.run) == (known.step, None)


def test_evaluations_are_part_of_the_whole_run():
    work = on_cpu()
    answers = work.rollout.prompts * work.rollout.samples
    evaluated = replace(work, rollout=replace(work.rollout, eval_problems=answers), eval_every=10)
    plain, more = timed(work, CPU), timed(evaluated, CPU)
    assert plain is not None
    assert more is not None
    assert plain.run is not None
    assert more.run == pytest.approx(plain.run + 11 * plain.rollout)  # before, after 10, 20 ... 90, and at the end


def test_rates_are_kept_by_model_and_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert speeds.earlier() == ()
    speeds.keep(OWN)
    speeds.keep(replace(OWN, lora=True))
    speeds.keep(replace(OWN, train=60.0))
    assert [(rate.lora, rate.train) for rate in speeds.earlier()] == [(False, 60.0), (True, 50.0)]
    speeds.rates_file().write_text("{")
    assert speeds.earlier() == ()


def test_a_rate_of_steps_that_are_too_short_to_tell_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    speeds.keep(replace(OWN, answered=16, rollout=3.0))
    assert speeds.earlier() == ()
    speeds.keep(OWN)
    speeds.keep(replace(OWN, answered=OWN.answered // 5, rollout=12.0))
    assert [rate.rollout for rate in speeds.earlier()] == [100.0]
    speeds.keep(replace(OWN, answered=OWN.answered // 3, rollout=80.0))
    assert [rate.rollout for rate in speeds.earlier()] == [80.0]
