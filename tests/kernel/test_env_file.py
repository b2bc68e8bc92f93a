"""The settings file gives commands the variables of the service. The environment has precedence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from eventservice.kernel.env import ENV_FILE, load_env_file
from tests.source_rules import ROOT

QUOTED = "postgres://eventservice:p%40ss@db.example:5432/x?sslmode=verify-full&a=b#c"


def load(folder: Path, text: str, **variables: str) -> dict[str, str]:
    (folder / ".env").write_text(text)
    load_env_file(folder, variables)
    return variables


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("NAME=value", "value"),
        ("export NAME=value", "value"),
        ("  NAME=value  # a comment", "value"),
        ("NAME=value # it's a comment", "value"),
        ("# it's a comment\nNAME=value", "value"),
        ("NAME=a#b", "a#b"),
        ("NAME=", ""),
        (f"NAME='{QUOTED}'", QUOTED),
        (f'NAME="{QUOTED}"', QUOTED),
        ("NAME='two words'", "two words"),
        ("NAME=a=b", "a=b"),
        ("NAME='a\u2028b'", "a\u2028b"),
    ],
)
def test_a_line_has_the_meaning_that_a_shell_gives_it(tmp_path: Path, line: str, value: str) -> None:
    assert load(tmp_path, f"# The settings.\n\n{line}\n") == {"NAME": value}
    shell = subprocess.run(
        ["sh", "-c", 'set -a; . ./.env; printf %s "$NAME"'],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shell.stdout == value


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    assert load(tmp_path, "\ufeffNAME=value\n") == {"NAME": "value"}


@pytest.mark.parametrize("given", ["mine", ""])
def test_a_variable_of_the_environment_has_precedence(tmp_path: Path, given: str) -> None:
    assert load(tmp_path, "NAME=file\nOTHER=file\n", NAME=given) == {"NAME": given, "OTHER": "file"}


@pytest.mark.parametrize("line", ["SECRET_KEY", "NAME=hush hush", "NAME='hush", "a-b=hush", "=hush"])
def test_a_line_that_is_no_assignment_is_refused_without_its_text(tmp_path: Path, line: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"\.env, line 2 is not NAME=value") as refused:
        load(tmp_path, f"GOOD=1\n{line}\n")
    assert "hush" not in str(refused.value)


def test_a_name_that_is_set_twice_is_refused(tmp_path: Path) -> None:
    text = "KEY=hush\nLOG_LEVEL=INFO\n\nexport LOG_LEVEL=DEBUG\nKEY=hush\n"
    with pytest.raises(ImproperlyConfigured) as refused:
        load(tmp_path, text)
    file = tmp_path / ".env"
    assert str(refused.value).splitlines() == [
        f"{file}, line 4: LOG_LEVEL is already set in line 2.",
        f"{file}, line 5: KEY is already set in line 1.",
        "Remove the lines that do not apply.",
    ]


def test_all_lines_that_are_wrong_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(ImproperlyConfigured) as refused:
        load(tmp_path, "KEY=hush hush\nLOG_LEVEL=INFO\nKEY='hush\nLOG_LEVEL=DEBUG\n=hush\n")
    file = tmp_path / ".env"
    assert str(refused.value).splitlines() == [
        f"{file}, line 1 is not NAME=value.",
        f"{file}, line 3 is not NAME=value.",
        f"{file}, line 5 is not NAME=value.",
        "A value with spaces needs quotation marks.",
        f"{file}, line 4: LOG_LEVEL is already set in line 2.",
        "Remove the lines that do not apply.",
    ]


def test_without_a_file_the_environment_decides(tmp_path: Path) -> None:
    variables: dict[str, str] = {}
    load_env_file(tmp_path, variables)
    assert variables == {}


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ImproperlyConfigured, match=r"ENV_FILE: there is no file .*/other"):
        load_env_file(tmp_path, {ENV_FILE: "other"})


def test_a_file_that_cannot_be_read_is_refused_unless_the_environment_has_the_settings(
    tmp_path: Path,
) -> None:
    (tmp_path / ".env").mkdir()
    with pytest.raises(ImproperlyConfigured, match=r"\.env cannot be read \(Is a directory\)"):
        load_env_file(tmp_path, {"ENVIRONMENT": "production"})
    load_env_file(tmp_path, {"ENVIRONMENT": "production", "SECRET_KEY": "k" * 40})


def test_every_process_reads_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings"
    file.write_text(f"DB_PATH={tmp_path}/named.db\nAPI_MAX_WAIT_SECONDS=77\n")
    program = (
        "import eventservice.runtime.gunicorn_config as web, eventservice.settings as settings;"
        "print(web.timeout, settings.DATABASES['default']['NAME'])"
    )
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**env, ENV_FILE: str(file)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["107", f"{tmp_path}/named.db"], done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_root_does_not_run_what_belongs_to_another_user(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("NAME=value")
    os.chown(path, 65534, -1)
    with pytest.raises(ImproperlyConfigured, match=r"belongs to nobody.* `sudo -u nobody`"):
        load_env_file(tmp_path, {})
    given = {"SECRET_KEY": "of the environment"}
    load_env_file(tmp_path, given)
    assert given["NAME"] == "value"
    os.chown(path, 4_000_000, -1)
    with pytest.raises(ImproperlyConfigured, match=r"`sudo -u #4000000`"):
        load_env_file(tmp_path, {})
