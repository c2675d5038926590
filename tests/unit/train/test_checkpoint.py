import json
import zlib
from pathlib import Path

import pytest
import torch

from headway.errors import InputError
from headway.rollout.samples import Sample
from headway.train import checkpoint
from headway.train.checkpoint import Progress

IDENTITY = {"model.path": "tiny-qwen3", "train.seed": 0}


def progress(step: int = 3) -> Progress:
    sample = Sample(7, 1, (1, 2, 3), (4, 5), (-0.1234567890123, -2.5), "é\n", "stop", 0.5, 0.0)
    return Progress(
        step=step, updates=1, optimizer_steps=7, seconds=1.5, rollout=(sample,),
        old_logprobs=((-0.1, -2.4),), ref_logprobs=None, sums={"tokens": 2.0},
    )  # fmt: skip


def parameters() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "a": torch.randn(5, 3, generator=generator),
        "b": torch.randn(4, generator=generator).to(torch.bfloat16),
    }


def optimizer() -> dict[str, torch.Tensor]:
    return {"a.exp_avg": torch.arange(15.0).view(5, 3), "step": torch.tensor(7)}


def save(root: Path, step: int = 3, keep: int = 2) -> Path:
    return checkpoint.save(root, progress(step), IDENTITY, parameters(), optimizer(), keep=keep)


def test_everything_comes_back_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(5)
    folder = save(tmp_path)
    expected_draw = torch.rand(3)
    torch.manual_seed(99)

    loaded = checkpoint.load(folder)
    assert loaded.progress == progress()
    assert loaded.identity == IDENTITY
    live = {name: torch.zeros_like(value) for name, value in parameters().items()}
    checkpoint.read_parameters(folder, live)
    for name, value in parameters().items():
        assert torch.equal(live[name], value)
    state = checkpoint.read_optimizer(folder)
    assert state.keys() == optimizer().keys()
    assert torch.equal(state["a.exp_avg"], optimizer()["a.exp_avg"])
    assert torch.equal(torch.rand(3), expected_draw)


def test_the_last_ones_are_kept_in_the_order_of_steps(tmp_path: Path) -> None:
    for step in (8, 9, 10, 1_000_000):
        save(tmp_path, step, keep=2)
    assert [path.name for path in checkpoint.folders(tmp_path)] == ["step-000010", "step-1000000"]


def test_saving_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path)
    later = progress()
    later.updates = 2
    folder = checkpoint.save(tmp_path, later, IDENTITY, parameters(), optimizer(), keep=2)
    assert checkpoint.load(folder).progress.updates == 2
    assert [path.name for path in tmp_path.iterdir()] == ["step-000003"]


def test_a_save_that_was_killed_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (tmp_path / ".step-000004.77.tmp").mkdir()
    (tmp_path / ".step-000004.77.tmp" / "model.safetensors").write_bytes(b"half")
    folder.rename(tmp_path / ".step-000003.old")  # killed between the two renames of a replacement
    checkpoint.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000003"]
    assert checkpoint.load(folder).progress == progress()


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "rollout.json"])
def test_a_torn_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:-3])
    with pytest.raises(InputError, match=f"torn: {name} has {len(content) - 3} of {len(content)} bytes"):
        checkpoint.load(folder)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / "optimizer.safetensors").unlink()
    with pytest.raises(InputError, match=r"torn: optimizer\.safetensors is missing"):
        checkpoint.load(folder)


def test_a_flipped_byte_is_refused_by_name(tmp_path: Path) -> None:
    folder = save(tmp_path)
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(bytes(content))
    with pytest.raises(InputError, match=r"checksum of model\.safetensors differs"):
        checkpoint.load(folder)


def test_a_foreign_folder_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "step-000001"
    folder.mkdir()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(InputError, match=r"step-000001 is refused: it has no state\.json"):
        checkpoint.load(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', "nonsense"])
def test_an_unreadable_state_is_refused(tmp_path: Path, text: str) -> None:
    folder = save(tmp_path)
    (folder / "state.json").write_text(text)
    with pytest.raises(InputError, match=r"state\.json cannot be read"):
        checkpoint.load(folder)


def test_a_checkpoint_of_another_format_says_who_reads_it(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / "state.json").write_text('{"format": 1, "step": 3, "files": {}, "identity": {}}')
    with pytest.raises(
        InputError, match="has format 1, and this version of headway reads format 2; resume it with the"
    ):
        checkpoint.load(folder)


def test_whose_it_is_can_be_read_alone(tmp_path: Path) -> None:
    folder = save(tmp_path)
    (folder / "model.safetensors").unlink()
    assert checkpoint.identity_of(folder) == (3, IDENTITY)


def test_another_models_parameters_are_refused(tmp_path: Path) -> None:
    folder = save(tmp_path)
    with pytest.raises(InputError, match="another model's"):
        checkpoint.read_parameters(folder, {"a": torch.zeros(5, 3)})
    with pytest.raises(InputError, match=r"a is torch.float32 \(5, 3\), the run has torch.float32 \(3, 5\)"):
        checkpoint.read_parameters(folder, parameters() | {"a": torch.zeros(3, 5)})


def test_an_answer_without_a_reward_comes_back_as_it_was(tmp_path: Path) -> None:
    failed = Sample(7, 1, (1, 2), (4,), (-2.5,), "4", "stop", None, None, "exception: ValueError: no (mine.py:3)")
    place = Progress(step=1, rollout=(failed,))
    folder = checkpoint.save(tmp_path, place, IDENTITY, parameters(), optimizer(), keep=1)
    assert checkpoint.load(folder).progress == place


def test_samples_of_an_older_version_are_read(tmp_path: Path) -> None:
    folder = save(tmp_path)
    rollout, state = folder / "rollout.json", folder / "state.json"
    text = rollout.read_text()
    older = text.replace('"score": 0.0, "failure": null', '"correct": 0.0')
    assert older != text
    rollout.write_text(older)
    found = json.loads(state.read_text())
    found["files"]["rollout.json"] = {"bytes": len(rollout.read_bytes()), "crc32": zlib.crc32(rollout.read_bytes())}
    state.write_text(json.dumps(found))
    assert checkpoint.load(folder).progress == progress()
