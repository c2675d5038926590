from pathlib import Path

from headway.rollout.reward_source import source_files


def test_what_a_reward_imports_from_its_folder_is_found_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__init__.py").write_text("")
    (tmp_path / "pack/score.py").write_text("import json\nfrom . import rules\n\ndef score():\n    import late\n")
    (tmp_path / "pack/rules.py").write_text("raise SystemExit('never run')\n")
    (tmp_path / "late.py").write_text("")
    (tmp_path / "other.py").write_text("")
    found = source_files("pack.score:score", [tmp_path])
    assert list(found) == ["late.py", "pack/__init__.py", "pack/rules.py", "pack/score.py"]


def test_of_an_installed_package_the_modules_own_file(tmp_path: Path) -> None:
    assert list(source_files("json.decoder:JSONDecoder", [tmp_path])) == ["decoder.py"]
    assert source_files("sys:exit", [tmp_path]) == {}
    assert source_files("no_such_module:score", [tmp_path]) == {}


def test_a_file_that_is_no_python_is_still_a_source(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(:\n")
    assert list(source_files("mine:score", [tmp_path])) == ["mine.py"]
