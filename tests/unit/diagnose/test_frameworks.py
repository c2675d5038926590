"""Advice is in the flags of the trainer that a log shows, and every command is one of a platform that it shows."""

import re

import pytest

from headway.diagnose.applied import asked, here, spelled, value_of
from headway.diagnose.engines import engine_advice, late_advice
from headway.diagnose.frameworks import FRAMEWORKS, VARIANTS, Change, flags, of_system
from headway.diagnose.infer import FORKS, SAVES
from headway.diagnose.rules import rules
from headway.diagnose.rules.causes.device_weight_sync import PARTS
from headway.diagnose.rules.rule import Advice, Rule, Settle
from headway.diagnose.seen import Seen, look, seen_in
from headway.diagnose.settings import Settings
from headway.foreign.spelling import SPELLINGS

from .told import diagnosis, told

PACKAGES = "/opt/conda/lib/python3.11/site-packages"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.00 GiB is free."
)
TIMEOUT = (
    "[rank1]:[E101 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=9, OpType=ALLREDUCE) ran for 600000 milliseconds before timing out."
)
SHOWN = {
    "trl": f'File "{PACKAGES}/trl/trainer/grpo_trainer.py", line 9, in training_step',
    "trl-sft": f'File "{PACKAGES}/trl/trainer/sft_trainer.py", line 9, in training_step',
    "transformers": f'File "{PACKAGES}/transformers/trainer.py", line 9, in training_step',
    "unsloth": 'File "/x/unsloth_compiled_cache/UnslothGRPOTrainer.py", line 9, in training_step',
    "axolotl": 'File "/workspace/axolotl/src/axolotl/train.py", line 9, in train',
    "llama-factory": 'File "/app/src/llamafactory/train/sft/workflow.py", line 9, in run_sft',
    "ms-swift": f'File "{PACKAGES}/swift/trainers/mixin.py", line 9, in training_step',
    "ms-swift-megatron": "+ NPROC_PER_NODE=8 megatron sft --load Qwen2.5-7B-mcore",
    "torchtune": f'File "{PACKAGES}/torchtune/modules/transformer.py", line 9, in forward',
    "litgpt": f'File "{PACKAGES}/litgpt/model.py", line 9, in forward',
    "nemo-rl": 'File "/opt/nemo-rl/nemo_rl/models/policy/dtensor_policy_worker.py", line 9, in train',
    "nemo-rl-megatron": 'File "/opt/nemo-rl/nemo_rl/models/policy/megatron_policy_worker.py", line 9, in train',
    "openrlhf": f'File "{PACKAGES}/openrlhf/trainer/ray/ppo_actor.py", line 9, in training_step',
    "openrlhf-sft": f'File "{PACKAGES}/openrlhf/trainer/sft_trainer.py", line 9, in fit',
    "megatron": 'File "/workspace/Megatron-LM/megatron/core/transformer/mlp.py", line 9, in forward',
    "verl": 'File "/root/verl/verl/workers/actor/dp_actor.py", line 9, in update_policy',
    "verl-megatron": 'File "/root/verl/verl/workers/actor/megatron_actor.py", line 9, in update_policy',
    "verl-sft": 'File "/root/verl/verl/trainer/fsdp_sft_trainer.py", line 9, in training_step',
    "slime": 'File "/root/slime/slime/backends/megatron_utils/actor.py", line 9, in train',
    "miles": 'File "/root/miles/miles/backends/megatron_utils/actor.py", line 9, in train',
    "miles-fsdp": "(FSDPTrainRayActor pid=31) training",
    "prime-rl": 'File "/home/me/prime-rl/src/prime_rl/trainer/rl/train.py", line 9, in train',
    "open-instruct": 'File "/stage/open_instruct/grpo_fast.py", line 9, in train',
    "headway": f'File "{PACKAGES}/headway/train/loop.py", line 9, in train',
    "EasyR1": 'File "/x/EasyR1/verl/trainer/main.py", line 9, in fit',
    "SkyRL": 'File "/x/skyrl_train/trainer.py", line 9, in train',
    "AReaL": 'File "/x/areal/engine/fsdp_engine.py", line 9, in train_batch',
    "RLinf": 'File "/x/rlinf/workers/actor.py", line 9, in train',
    "ROLL": 'File "/x/ROLL/roll/pipeline/rlvr.py", line 9, in train',
    "torchtitan": 'File "/x/torchtitan/train.py", line 9, in train',
    "NeMo": f'File "{PACKAGES}/nemo/collections/llm/api.py", line 9, in train',
}
"""A line of a log of every trainer of the table."""
COMMANDS = {
    "kubernetes": r"kubectl|Kubernetes|\bpods?\b|emptyDir|evict",
    "docker": r"\bdocker\b|Docker",
    "slurm": r"\bsacct\b|\bscontrol\b|\bsbatch\b|Slurm|--signal=",
    "lsf": r"\bbhist\b|LSF",
    "pbs": r"\bqstat\b|PBS",
    "ray": r"/tmp/ray|\bRay\b|\bray (?:start|status|stop)\b|RAY_",
    "nvidia": r"nvidia-smi|compute-sanitizer|CUDA_LAUNCH|\bNVRM\b",
    "amd": r"rocm-smi|AMD_|PYTORCH_HIP",
}
"""Platform -> words that only its users can do something with."""
ALL_RULES = [*rules("mechanism").values(), *rules("cause").values()]
WITH_FLAGS = [name for name, each in FRAMEWORKS.items() if each.flags]


def traceback(shown: str, end: str = OOM) -> str:
    """The log of a trainer that ends in a backward pass."""
    return f"Traceback (most recent call last):\n  {shown}\n    loss.backward()\n{end}"


def texts(text: str) -> str:
    """All advice about a log as one text."""
    return "\n".join(each.text for each in told(text).advice)


def flags_in(text: str) -> set[str]:
    """Every flag of any trainer that a text holds."""
    return {
        flag
        for each in FRAMEWORKS.values()
        for options in each.flags.values()
        for flag in options
        if re.search(rf"(?<![\w.-]){re.escape(flag.split(',')[0].split(' and ')[0])}(?![\w-])", text)
    }


def own(name: str) -> set[str]:
    """Every flag of any trainer that this one has too."""
    return flags_in("\n".join(flag for options in FRAMEWORKS[name].flags.values() for flag in options))


class TestWhichTrainer:
    def test_every_trainer_of_the_table_is_shown_here(self):
        variants = {name for each in VARIANTS.values() for _, name in each}
        assert set(SHOWN) == set(FRAMEWORKS)
        assert variants < set(FRAMEWORKS)

    @pytest.mark.parametrize(("name", "line"), SHOWN.items())
    def test_its_own_code_shows_it(self, name: str, line: str):
        assert seen_in(line).framework == name

    @pytest.mark.parametrize(
        "line",
        [
            'File "/home/verl/notes/train.py", line 9, in main',
            'File "/home/slime/train.py", line 9, in main',
            'File "/opt/conda/envs/trl/lib/python3.11/site-packages/torch/nn/modules/module.py", line 9, in forward',
            'File "/envs/verl/workers/lib/python3.11/site-packages/torch/optim/adam.py", line 9, in step',
            "Downloading data for user axolotl from s3://megatron/x",
            'File "/data/unsloth.py", line 9, in main',
            "the swift answer of a verl trainer; miles away",
            'File "/home/me/transformers/mine.py", line 9, in main',
        ],
    )
    def test_a_name_alone_shows_none(self, line: str):
        assert seen_in(line).framework == ""

    def test_paths_of_windows(self):
        package = r"C:\Users\me\venv\Lib\site-packages\trl\trainer\sft_trainer.py"
        assert seen_in(f'File "{package}", line 9').framework == "trl-sft"
        assert seen_in(r'File "C:\Users\verl\workers\train.py", line 9').framework == ""

    def test_the_one_on_top_counts(self):
        for above, below in (("axolotl", "trl"), ("trl", "transformers"), ("slime", "megatron"), ("verl", "trl")):
            assert seen_in(f"{SHOWN[below]}\n{SHOWN[below]}\n{SHOWN[above]}").framework == above

    def test_two_that_show_alike_are_none(self):
        assert seen_in(f"{SHOWN['slime']}\n{SHOWN['verl']}").framework == ""
        assert seen_in(f"{SHOWN['slime']}\n{SHOWN['verl']}\n{SHOWN['verl']}").framework == "verl"

    def test_a_script_s_settings_decide(self):
        assert look((), Settings(system="openrlhf")).framework == "openrlhf"
        assert look((), Settings(system="megatron"), (SHOWN["verl"],)).framework == "megatron"
        assert of_system("trl-sft-script") == "trl-sft"
        assert of_system("fsdp2") == ""

    def test_a_script_that_is_not_read_shows_its_trainer_and_its_platform(self):
        settings = Settings(launch="#SBATCH -N 2\naxolotl train qwen.yml --micro-batch-size 4")
        seen = look((), settings)
        assert (seen.framework, seen.platforms) == ("axolotl", {"slurm"})
        assert spelled("fewer-tokens", seen) == "micro_batch_size 4 -> 2"

    def test_a_log_s_first_lines_show_the_launch(self):
        log = "+ python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo\n" + "progress\n" * 400
        found = diagnosis(log + traceback('File "/home/me/reward.py", line 9, in forward')).answer
        assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu" in found.advice[0].text


class TestFlags:
    @pytest.mark.parametrize(
        ("name", "tokens", "recompute"),
        [
            ("trl", "per_device_train_batch_size", "gradient_checkpointing=True"),
            ("transformers", "per_device_train_batch_size", "gradient_checkpointing=True"),
            ("unsloth", "per_device_train_batch_size", 'use_gradient_checkpointing="unsloth"'),
            ("axolotl", "micro_batch_size", "gradient_checkpointing: true"),
            ("ms-swift", "--per_device_train_batch_size", "--gradient_checkpointing true"),
            ("torchtune", "batch_size", "enable_activation_checkpointing=True"),
            ("nemo-rl", "policy.train_micro_batch_size", "policy.dtensor_cfg.activation_checkpointing=true"),
            ("nemo-rl-megatron", "policy.train_micro_batch_size", "policy.megatron_cfg.activation_checkpointing"),
            ("openrlhf", "--micro_train_batch_size", "--gradient_checkpointing"),
            ("megatron", "--micro-batch-size", "--recompute-granularity full"),
            (
                "verl", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
                "actor_rollout_ref.model.enable_gradient_checkpointing=True",
            ),
            ("verl-sft", "data.micro_batch_size_per_gpu", "model.enable_gradient_checkpointing=True"),
            ("slime", "--max-tokens-per-gpu", "--recompute-granularity full"),
            ("miles-fsdp", "--max-tokens-per-gpu", "--gradient-checkpointing"),
            ("ms-swift-megatron", "--micro_batch_size", "--recompute_granularity full"),
            ("prime-rl", "trainer.model.seq_len", "[trainer.model.ac]"),
            ("open-instruct", "--per_device_train_batch_size", "--gradient_checkpointing"),
            ("headway", "train.cap", "train.checkpointing = true"),
        ],
    )  # fmt: skip
    def test_a_refused_request(self, name: str, tokens: str, recompute: str):
        advice = told(traceback(SHOWN[name])).advice
        assert advice[0].text == f"lower the tokens of a micro-batch ({tokens})"
        assert any(recompute in each.text for each in advice)

    @pytest.mark.parametrize(
        ("name", "flag"),
        [
            ("trl", "ddp_timeout"), ("axolotl", "ddp_timeout"), ("verl", "actor_rollout_ref.nccl_timeout"),
            ("megatron", "--distributed-timeout-minutes"), ("slime", "--distributed-timeout-minutes"),
            ("open-instruct", "--backend_timeout"), ("prime-rl", "trainer.dist_timeout_seconds"),
        ],
    )  # fmt: skip
    def test_a_collective_that_waited_too_long(self, name: str, flag: str):
        assert f"({flag})" in texts(traceback(SHOWN[name], TIMEOUT))

    @pytest.mark.parametrize("name", ["openrlhf", "torchtune", "EasyR1"])
    def test_a_trainer_without_a_flag_gets_words(self, name: str):
        found = texts(traceback(SHOWN[name], TIMEOUT))
        assert "raise the time-out of collectives" in found
        assert not flags_in(found)

    def test_no_trainer_no_flag(self):
        found = texts(traceback('File "/home/verl/notes/train.py", line 9, in main'))
        assert "lower the tokens of a micro-batch" in found
        assert not flags_in(found)

    def test_the_engine_s_settings_are_those_that_the_trainer_passes_on(self):
        inside = f'File "{PACKAGES}/vllm/v1/worker/gpu_model_runner.py", line 9, in execute_model'
        for name, flag in (
            ("trl", "vllm_gpu_memory_utilization"), ("openrlhf", "--vllm_gpu_memory_utilization"),
            ("nemo-rl", "policy.generation.vllm_cfg.gpu_memory_utilization"),
        ):  # fmt: skip
            assert told(traceback(f"{SHOWN[name]}\n  {inside}")).advice[0].text.startswith(f"lower {flag}:")
        alone = told(traceback(inside)).advice
        assert alone[0].text.startswith("lower gpu_memory_utilization:")
        assert "max_num_seqs" in alone[1].text

    def test_expandable_segments_are_not_advised_where_they_are_refused(self):
        pieces = (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "79.11 GiB of which 1.00 GiB is free. Of the allocated memory 60.00 GiB is allocated by PyTorch, and "
            "14.20 GiB is reserved by PyTorch but unallocated."
        )
        assert told(pieces).cause == "device-fragmentation"
        assert told(pieces).advice[0].text.endswith("(PYTORCH_CUDA_ALLOC_CONF)")
        assert "(PYTORCH_HIP_ALLOC_CONF)" in texts(pieces.replace("CUDA", "HIP"))
        hint = " If it is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
        assert "(PYTORCH_ALLOC_CONF)" in texts(pieces + hint)
        assert "expandable" not in texts(
            "+ PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' python x.py\n" + pieces
        )
        for beside in ("+ python train.py --colocate", "NVIDIA GB10", "[torch_memory_saver] paused"):
            assert "expandable" not in texts(f"{beside}\n{pieces}")

    def test_a_trainer_without_an_engine_is_told_nothing_of_one(self):
        assert "engine" not in texts(f"{SHOWN['torchtune']}\n{OOM}")
        assert "engine" in texts(OOM)

    def test_what_there_is_no_flag_for_comes_after_what_there_is_one_for(self):
        logits = 'File "/x/loss.py", line 9, in compute\n    torch.log_softmax(logits.float(), dim=-1)'
        log = f"Traceback (most recent call last):\n  {SHOWN['torchtune']}\n    x\n  {logits}\n{OOM}"
        found = told(log)
        assert found.cause == "device-logits"
        assert [bool(each.flag) for each in found.advice] == [True, False]

    def test_the_planner_writes_the_same_flags(self):
        keys = {
            "trainer.checkpointing": "recompute", "engine.memory_fraction": "engine-share",
            "rollout.max_answer": "shorter-sequences",
        }  # fmt: skip
        for system in ("slime", "miles-fsdp", "verl", "openrlhf", "trl", "torchtune", "megatron", "litgpt"):
            for key, change in keys.items():
                for flag in flags(change, system)[:1]:
                    if key in SPELLINGS[system]:
                        name = re.split(r"[ =:,]", flag.lstrip("-"))[0]
                        assert name in SPELLINGS[system][key], (system, key)

    def test_every_change_of_the_table_is_asked_for(self):
        asked_for = {each.change for rule in ALL_RULES for each in rule.advice} | {SAVES.change, PARTS.change}
        asked_for |= {each.change for each in engine_advice("vllm", Seen())}
        assert {change for each in FRAMEWORKS.values() for change in each.flags} <= asked_for

    def test_what_is_to_be_left_out_is_named_where_it_is_there(self):
        assert spelled("less-offload", Seen("openrlhf", text="--adam_offload --bf16")) == "without --adam_offload"
        assert spelled("less-offload", Seen("openrlhf", text="--bf16")) == ""

    def test_a_save_that_others_wait_for(self):
        saving = f"saving checkpoint at iteration 50\n{TIMEOUT}"
        for name, flag in (("megatron", "(--async-save)"), ("verl-megatron", "checkpoint.async_save=True)")):
            assert flag in texts(f"{SHOWN[name]}\n{saving}")
        assert "write the checkpoint asynchronously" in texts(saving)


class TestValues:
    def test_from_what_to_what(self):
        log = "+ python train.py --max-tokens-per-gpu 9216\n" + traceback(SHOWN["slime"])
        assert told(log).advice[0].text.endswith("(--max-tokens-per-gpu 9216 -> 4608)")

    def test_of_a_script(self):
        settings = Settings(system="openrlhf", flags={"micro_train_batch_size": "4"})
        found = diagnosis(traceback('File "/home/me/x.py", line 9, in f'), settings=settings).answer
        assert found.advice[0].text.endswith("(--micro_train_batch_size 4 -> 2)")

    def test_one_sample_cannot_be_halved(self):
        log = "micro_batch_size: 1\nsequence_len: 8192\n" + traceback(SHOWN["axolotl"])
        assert told(log).advice[0].text.endswith("(sequence_len 8192 -> 4096)")
        unknown = "micro_batch_size: 1\n" + traceback(SHOWN["axolotl"])
        assert "lower the tokens of a micro-batch (" not in texts(unknown)

    def test_one_flag_is_told_once(self):
        assert [each.flag for each in told(traceback(SHOWN["prime-rl"])).advice].count("trainer.model.seq_len") == 1

    def test_a_cap_counts_only_where_batches_are_dynamic(self):
        launch = "ppo_max_token_len_per_gpu=16384 ppo_micro_batch_size_per_gpu=8 use_dynamic_bsz={}"
        for dynamic, flag in (
            ("True", "ppo_max_token_len_per_gpu 16384"),
            ("False", "ppo_micro_batch_size_per_gpu 8"),
        ):
            assert f"{flag} -> " in spelled("fewer-tokens", Seen("verl", text=launch.format(dynamic)))

    @pytest.mark.parametrize(
        ("name", "on", "off"),
        [
            ("trl", "gradient_checkpointing=True", "gradient_checkpointing=False"),
            ("megatron", "recompute_granularity ......... full", "recompute_granularity ......... None"),
            ("openrlhf", "--gradient_checkpointing --bf16", "gradient_checkpointing=False"),
            ("axolotl", "gradient_checkpointing: true", "gradient_checkpointing: false"),
            ("llama-factory", "lora_rank: 8", "disable_gradient_checkpointing: true"),
        ],
    )
    def test_what_is_on_is_not_advised(self, name: str, on: str, off: str):
        log = traceback(SHOWN[name])
        assert "recompute" not in texts(f"{on}\n{log}")
        assert "recompute" in texts(f"{off}\n{log}")

    @pytest.mark.parametrize(
        ("name", "change", "on", "off"),
        [
            ("slime", "chunked-logprobs", "--log-probs-chunk-size 512", "log_probs_chunk_size ...... -1"),
            ("slime", "balance", "--balance-data --use-dynamic-batch-size", "balance_data ......... False"),
            ("openrlhf", "engine-graphs", "--enforce_eager", "enforce_eager=False"),
            ("megatron", "save-async", "--async-save", "async_save ......... False"),
            ("nemo-rl", "chunked-logprobs", "policy.logprob_chunk_size=1024", "logprob_chunk_size: null"),
            ("verl", "balance", "trainer.balance_batch=True", "trainer.balance_batch=False"),
        ],
    )
    def test_a_switch_that_is_on(self, name: str, change: Change, on: str, off: str):
        advice = (Advice("do it", "", "", change),)
        assert here(advice, Seen(name, text=on)) == ()
        assert here(advice, Seen(name, text=off))[0].flag
        assert here(advice, Seen(name))[0].flag

    def test_two_values_are_none(self):
        assert value_of("a.max_len", "a.max_len=1") == "1"
        assert value_of("a.max_len", "b.max_len=1") is None
        assert value_of("--x-y", "x_y=3 --x-y 4") is None

    def test_an_engine_s_share(self):
        assert spelled("engine-share", Seen("trl", text="vllm_gpu_memory_utilization=0.5")).endswith("0.5 -> 0.4")
        assert spelled("raise-engine-share", Seen("", "vllm", text="gpu_memory_utilization=0.5")).endswith(
            "0.5 -> 0.6"
        )
        assert spelled("engine-share", Seen("trl", text="vllm_gpu_memory_utilization=0.1")).endswith("utilization")


class TestPlatforms:
    @pytest.mark.parametrize(
        ("line", "platform"),
        [
            ("srun: error: n1: task 3: Killed", "slurm"),
            ("+ docker run --gpus all img", "docker"),
            ("trainer-1  | Killed", "docker"),
            ("trainer-1 exited with code 137", "docker"),
            ('"OOMKilled": true,', "docker"),
            ("Reason:       OOMKilled", "kubernetes"),
            ("pod trainer-0 was deleted", "kubernetes"),
            ("The worker may have exceeded K8s pod memory limits.", "kubernetes"),
            ("(TrainerController pid=2656) x", "ray"),
            ("(pid=1121) a warning", "ray"),
            ("(Worker pid=12, ip=10.0.0.4) x", "ray"),
            (f'File "{PACKAGES}/ray/_private/worker.py", line 9, in get', "ray"),
            (SHOWN["slime"], "ray"),
            ("TERM_RUNLIMIT: job killed", "lsf"),
            ("=>> PBS: job killed: walltime", "pbs"),
            ("RuntimeError: HIP error: out of memory", "amd"),
            ("amdgpu 0000:c1:00.0: GPU reset begin!", "amd"),
            (f"{OOM}\namdgpu: the processor's own", "nvidia"),
            (OOM, "nvidia"),
        ],
    )
    def test_what_shows_one(self, line: str, platform: str):
        assert platform in seen_in(line).platforms

    @pytest.mark.parametrize(
        ("line", "platform"),
        [
            ("(EngineCore_0 pid=12) x", "ray"), ("(APIServer pid=1) x", "ray"), ("(Worker_TP0 pid=7) x", "ray"),
            ("(VllmWorker rank=0 pid=3) x", "ray"), ("(Worker_DP0_TP1 pid=7) x", "ray"), ("(Worker pid=7) x", "ray"),
            ("(EngineCore_DP0 pid=270) x", "ray"), ("an array of arrays", "ray"), (SHOWN["verl-sft"], "ray"),
            ("Evicting 12 blocks of the prefix cache", "kubernetes"), ("a TPU pod v4-32", "kubernetes"),
            ('"OOMKilled": false,', "kubernetes"), ("the docks of a container", "docker"),
            ("| loss-1 | 0.5 |", "docker"),
            (OOM, "amd"), (f"{OOM}\namdgpu: the processor's own", "amd"),
            ("HIP out of memory; see torch.cuda", "nvidia"),
        ],
    )  # fmt: skip
    def test_what_shows_none(self, line: str, platform: str):
        assert platform not in seen_in(line).platforms

    @pytest.mark.parametrize(
        ("text", "there"),
        [
            ("srun: error: n1: task 3: Killed", "sacct"),
            ("+ docker run img\nKilled", "docker inspect --format '{{.State.OOMKilled}}"),
            ("kubelet: container main of pod train-0 restarts\nKilled", "kubectl"),
            ("slurmstepd: error: Detected 1 oom_kill event in StepId=4242.0.", "sacct"),
            ("ERROR: TERM_RUNLIMIT: job killed after reaching LSF run time limit.", "bhist"),
        ],
    )
    def test_what_is_asked(self, text: str, there: str):
        found = told(text)
        commands = "\n".join(each.command for each in (*found.would_settle, *rules("cause")["time-limit"].settle))
        assert there in commands
        assert ("sacct" in "\n".join(each.command for each in found.would_settle)) == (there == "sacct")

    def test_an_amd_device(self):
        log = (
            "torch.OutOfMemoryError: {} out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
            "191.98 GiB of which 1.00 GiB is free. Process 811 has 80.00 GiB memory in use. Including non-PyTorch "
            "memory, this process has 110.00 GiB memory in use."
        )
        for name, command in (("HIP", "rocm-smi --showpids"), ("CUDA", "nvidia-smi")):
            found = told(log.format(name))
            assert found.cause == "device-other-process"
            assert command in [each.command for each in found.would_settle]
            assert len([each for each in found.would_settle if "-smi" in each.command]) == 1

    def test_a_kernel_s_fault_on_an_amd_device(self):
        assert "AMD_SERIALIZE_KERNEL=3" in texts("RuntimeError: HIP error: an illegal memory access was encountered")
        assert "CUDA_LAUNCH_BLOCKING=1" in texts("RuntimeError: CUDA error: an illegal memory access was encountered")

    def test_an_end_that_is_not_known_asks_what_is_there(self):
        commands = [each.command for each in told("step 3: loss 0.5").would_settle]
        assert any("dmesg" in each for each in commands)
        assert not any("/tmp/ray" in each or "kubectl" in each for each in commands)
        assert any("/tmp/ray" in each.command for each in told(f"{SHOWN['verl']}\nRayTaskError: x").would_settle)

    def test_who_started_the_run_is_asked_where_nothing_that_starts_runs_shows(self):
        text = "process exited with code 143"
        for log, there in ((text, True), (f"srun: task 3\n{text}", False), (f"pod train-0\n{text}", False)):
            assert any("ask what started" in each.command for each in told(log).would_settle) == there

    def test_an_eviction_is_named_in_kubernetes(self):
        text = "*** SIGTERM received at time=1764412345 on cpu 3 ***"
        assert "eviction" not in told(text).sentence
        assert "an eviction could" in told(f"pod trainer-0 on node-1\n{text}").sentence

    def test_shared_memory(self):
        text = "RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that "
        text += "dataloader's workers are out of shared memory."
        assert told(text).advice[0].text == "a larger /dev/shm"
        assert "--shm-size" in told(f"+ docker run img\n{text}").advice[0].text
        assert "emptyDir" in told(f"pod train-0\n{text}").advice[0].text


def everything(rule: Rule, seen: Seen) -> tuple[str, str]:
    """All advice of a rule and all that it asks, where a run was."""
    passes_on = not seen.framework or "engine-share" in FRAMEWORKS[seen.framework].flags
    engines = ("vllm", "sglang") if passes_on else ()
    more = [each for engine in engines for each in engine_advice(engine, seen)]
    more += [FORKS, SAVES, *(late_advice("vllm", seen) if seen.platforms & {"nvidia", "amd"} else ())]
    advice = "\n".join(each.text for each in here((*rule.advice, *more), seen))
    return advice, "\n".join(f"{each.command} {each.where} {each.line}" for each in asked(rule.settle, seen))


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: f"{rule.level}-{rule.name}")
class TestEveryRule:
    def test_names_no_flag_itself(self, rule: Rule):
        found = "\n".join(f"{each.text} {each.effect} {each.risk}" for each in rule.advice)
        assert not flags_in(found), "a flag belongs into frameworks.py, and its change's key into the rule"

    def test_is_told_in_the_flags_of_its_trainer_alone(self, rule: Rule):
        for name in WITH_FLAGS:
            advice, questions = everything(rule, Seen(name))
            assert not flags_in(f"{advice}\n{questions}") - own(name), name

    def test_speaks_of_no_platform_that_is_not_seen(self, rule: Rule):
        for there in ((), *((name,) for name in COMMANDS)):
            advice, questions = everything(rule, Seen(platforms=frozenset(there)))
            for name, words in COMMANDS.items():
                if name not in there and (name, rule.name) not in OF_ITS_PLATFORM:
                    assert not re.search(words, f"{advice}\n{questions}"), (there, name)

    def test_its_own_example_is_told_in_the_flags_of_the_trainer_that_is_seen(self, rule: Rule):
        for name in ("trl", "verl", "megatron", "openrlhf", "slime", "torchtune"):
            log = f"{SHOWN[name]}\n{rule.example}"
            if seen_in(log).framework == name:
                assert not flags_in(texts(log)) - own(name), name


OF_ITS_PLATFORM = {("ray", name) for name in ("raylet-lost", "ray-memory-monitor", "object-store-full", "gcs-lost")}
"""Rules about ends that only a platform has, so that their logs always show it."""


def test_a_question_has_a_form_for_elsewhere():
    question = Settle("ray status", "Ray", "x", on="ray", instead=Settle("look", "there", "x"))
    assert [each.command for each in asked((question, question), Seen())] == ["look"]
    assert [each.command for each in asked((question,), Seen(platforms=frozenset({"ray"})))] == ["ray status"]
