"""The version tells whether two processes run the same code."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventservice.kernel import version
from eventservice.kernel.version import get_version


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for package in version.PACKAGES:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    monkeypatch.setattr(version, "ROOT", tmp_path)
    return tmp_path


def read_version() -> str:
    return get_version.__wrapped__()


def test_equal_code_has_the_same_version(tree: Path) -> None:
    assert read_version() == read_version()
    assert len(read_version()) == version.VERSION_LENGTH


def test_each_change_of_the_code_is_another_version(tree: Path) -> None:
    versions = [read_version()]
    module = tree / "timers" / "poller.py"
    module.write_text("x = 1\n")
    versions.append(read_version())
    module.write_text("x = 2\n")
    versions.append(read_version())
    module.rename(tree / "timers" / "other.py")
    versions.append(read_version())
    assert len(set(versions)) == len(versions)


def test_what_python_compiled_is_no_code(tree: Path) -> None:
    before = read_version()
    cache = tree / "timers" / "__pycache__"
    cache.mkdir()
    (cache / "poller.cpython-311.pyc").write_bytes(b"compiled")
    assert read_version() == before


def test_a_process_keeps_the_version_that_it_started_with() -> None:
    assert get_version() is get_version()
