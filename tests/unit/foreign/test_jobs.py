"""What a job asks its scheduler for, the variables that it then has, and what a script asks of the machine."""

import pytest

from headway.foreign import jobs
from headway.foreign.shell import read_text
from headway.units import GIB


def job(*lines: str) -> jobs.Job:
    found = jobs.of_script("\n".join(("#!/bin/bash", *lines, "srun python train.py")))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("lines", "nodes", "devices"),
    [
        (["#SBATCH --nodes=4", "#SBATCH --gpus-per-node=8"], 4, 8),
        (["#SBATCH -N 4", "#SBATCH --gres=gpu:8"], 4, 8),
        (["#SBATCH -N4 --gres=gpu:h100:8"], 4, 8),
        (["#SBATCH --nodes 2", "#SBATCH --gres gpu:a100:4,nvme:1"], 2, 4),
        (["#SBATCH --nodes=4", "#SBATCH --gpus=32"], 4, 8),
        (["#SBATCH -N 4 -G 32"], 4, 8),
        (["#SBATCH --nodes=4", "#SBATCH --gpus=h100:32"], 4, 8),
        (["#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=8", "#SBATCH --gpus-per-task=1"], 2, 8),
        (["#SBATCH --ntasks=16", "#SBATCH --ntasks-per-node=8", "#SBATCH --gpus-per-node=8"], 2, 8),
        (["#SBATCH --gpus-per-node=a100:8"], 1, 8),
        (["#SBATCH --nodes=2-2", "#SBATCH --gres=gpu:8  # all of them"], 2, 8),
        (["#SBATCH --gres=gpu"], 1, 1),
        (['#SBATCH --comment "a b" ', "#SBATCH -p gpu -N 2", '#SBATCH --gpus-per-node="h100:8"'], 2, 8),
        (["#SBATCH -N 1", "#SBATCH hetjob", "#SBATCH -N 4", "#SBATCH --gpus-per-node=8"], 4, 8),
        (["#PBS -l select=4:ncpus=64:ngpus=8:mem=512gb"], 4, 8),
        (["#PBS -l nodes=2:ppn=32:gpus=4"], 2, 4),
        (["#BSUB -nnodes 3", '#BSUB -gpu "num=6:mode=exclusive_process"'], 3, 6),
    ],
)
def test_what_a_job_asks_for(lines, nodes, devices):
    found = job(*lines)
    assert (found.nodes, found.devices) == (nodes, devices)


@pytest.mark.parametrize(
    ("lines", "nodes", "devices"),
    [
        (["#SBATCH --nodes=2-4", "#SBATCH --gpus-per-node=8"], None, 8),  # as many as there are
        (["#SBATCH --ntasks=32", "#SBATCH --gpus-per-node=8"], None, 8),  # on any number of nodes
        (["#SBATCH --nodes=3", "#SBATCH --gpus=32"], 3, None),
        (["#SBATCH --nodes=$N", "#SBATCH --gpus-per-node=$G"], None, None),
        (["#SBATCH --nodes=1", "##SBATCH --gpus-per-node=8"], 1, None),  # commented out
        (["#SBATCH --nodes=1", "# SBATCH --gpus-per-node=8"], 1, None),
        (["#SBATCH --nodes=1", "cd /work", "#SBATCH --gpus-per-node=8"], 1, None),  # behind the first command
        (["#SBATCH --nodes=" + "9" * 40], None, None),
        (["#SBATCH --job-name=gpus-8", "#SBATCH --gres=nvme:8"], 1, None),
    ],
)
def test_what_is_no_count(lines, nodes, devices):
    found = job(*lines)
    assert (found.nodes, found.devices) == (nodes, devices)


def test_a_script_without_lines_is_no_job():
    assert jobs.of_script("echo '#SBATCH --nodes=4'\npython3 train.py") is None


def test_lines_in_a_here_document():
    text = "N=4\nsbatch <<'EOF'\n#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gres=gpu:8\nsrun python3 train.py\nEOF\n"
    found = jobs.of_script(text)
    assert found is not None
    assert (found.nodes, found.devices) == (4, 8)
    assert jobs.of_script(text.replace("sbatch <<'EOF'", "cat > note.txt; echo x")) is None


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("--mem=512G", 512 * GIB),
        ("--mem 1T", 1024 * GIB),
        ("--mem=204800", 200 * GIB),
        ("--mem-per-gpu=100G --gpus-per-node=8", 800 * GIB),
        ("--mem-per-cpu=4G --cpus-per-task=16 --ntasks-per-node=8 -N 2", 512 * GIB),
        ("--mem=0", None),
        ("--mem=lots", None),
    ],
)
def test_host_memory_of_a_node(line, size):
    assert job(f"#SBATCH {line}").memory == size


def test_words_of_sbatch_win_over_the_lines_of_the_script():
    own = job("#SBATCH --nodes=2", "#SBATCH --gres=gpu:8", "#SBATCH --mem=1T")
    found = jobs.over(own, jobs.of_words(["sbatch", "--nodes", "4", "-G", "16", "run.sh", "--nodes", "9"]))
    assert found is not None
    assert (found.nodes, found.memory, found.variables["SLURM_NNODES"]) == (4, 1024 * GIB, "4")
    assert jobs.of_words(["python3", "train.py", "--nodes", "4"]) is None


def test_the_variables_of_a_job_are_known_in_its_script():
    script = read_text(
        "#SBATCH -N 4\n#SBATCH --gpus-per-node=h100:8\n#SBATCH --ntasks-per-node=1\n"
        "python3 x.py $SLURM_NNODES $SLURM_GPUS_ON_NODE $SLURM_GPUS_PER_NODE $((SLURM_NNODES * 8)) "
        "$(nvidia-smi -L | wc -l) $(scontrol show hostnames $SLURM_JOB_NODELIST | wc -l) ${SLURM_NNODES:-1} "
        "$SLURM_NTASKS ${SLURM_GPUS:-7}"
    )
    words = [word.text for word in script.commands[0].argv[2:]]
    assert words == ["4", "8", "h100:8", "32", "8", "4", "4", "4", "7"]


def test_without_a_job_they_are_not():
    script = read_text("python3 x.py $SLURM_NNODES $((SLURM_NNODES * 8)) $(($SLURM_NNODES * 8)) ${SLURM_NNODES:-1}")
    assert [word.text for word in script.commands[0].argv[2:]] == [None, None, None, "1"]
    assert script.asked == {"SLURM_NNODES"}
    assert "is set by Slurm" in script.commands[0].argv[2].why


@pytest.mark.parametrize(
    "text",
    [
        "nvidia-smi -L | wc -l",
        "nvidia-smi --list-gpus 2>/dev/null | wc -l",
        "nvidia-smi --query-gpu=name --format=csv,noheader | wc -l",
        "nvidia-smi --query-gpu=index,name --format=csv,noheader,nounits | wc -l | xargs",
        "nvidia-smi --query-gpu=count --format=csv,noheader | head -n 1",
        "nvidia-smi -L | grep -c GPU",
        "rocm-smi --showid | grep GPU | wc -l",
        "ls /dev/nvidia[0-9]* | wc -l",
        'python3 -c "import torch; print(torch.cuda.device_count())"',
        "/opt/conda/bin/python -c 'import torch;print(torch.cuda.device_count())'",
    ],
)
def test_what_counts_devices(text):
    counts = jobs.Counts(1, 8, "8xh100-80")
    assert read_text(f"N=$({text})\npython3 x.py $N", counts=counts).commands[-1].argv[2].text == "8"
    assert "devices" in read_text(f"python3 x.py $({text})").asked


@pytest.mark.parametrize(
    "text",
    [
        "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits | head -n 1",
        "nvidia-smi topo -m | wc -l",
        "nvidia-smi -L",
        "ls /data | wc -l",
        'python3 -c "import torch; print(torch.cuda.device_count() * 2)"',
        "cat hosts | wc -l",
    ],
)
def test_what_does_not(text):
    script = read_text(f"python3 x.py $({text})", counts=jobs.Counts(1, 8, "8xh100-80"))
    assert script.commands[-1].argv[2].text is None
    assert not script.asked


def test_visible_devices_that_the_script_sets_are_what_torch_counts():
    text = (
        "export CUDA_VISIBLE_DEVICES=2,3\npython3 x.py $(python -c 'import torch; print(torch.cuda.device_count())')"
    )
    assert read_text(text, counts=jobs.Counts(1, 8, "8xh100-80")).commands[-1].argv[2].text == "2"
    smi = text.replace("python -c 'import torch; print(torch.cuda.device_count())'", "nvidia-smi -L | wc -l")
    assert read_text(smi, counts=jobs.Counts(1, 8, "8xh100-80")).commands[-1].argv[2].text == "8"


@pytest.mark.parametrize(
    "name",
    ["SLURM_JOB_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "PET_NNODES", "KUBERNETES_SERVICE_HOST",
     "RAY_ADDRESS", "PBS_NODEFILE", "OMPI_COMM_WORLD_RANK", "ARNOLD_WORKER_NUM", "LSB_JOBID", "TORCHELASTIC_RUN_ID"],
)  # fmt: skip
def test_variables_of_who_starts_the_job(name):
    assert jobs.setter(name)


@pytest.mark.parametrize("name", ["REWARD_DIR", "MODEL", "RANKING", "MY_SLURM_DIR", "WORLD", "RAY_DATA_DIR", "NODES"])
def test_variables_of_nobody(name):
    assert not jobs.setter(name)
