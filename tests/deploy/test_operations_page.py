"""docs/operations.md and deploy/README.md name files, units, services and objects that exist in deploy/."""

from __future__ import annotations

import re
import shlex

import pytest

from tests.deploy.manifests import DEPLOY, IMAGE_NAME, ROOT, VERSION, read_documents

PAGES = {
    name: (ROOT / name).read_text() for name in ("docs/operations.md", "docs/metrics.md", "deploy/README.md")
}
PAGE = PAGES["docs/operations.md"]
# Lines that are continued are one command.
COMMANDS = [
    line.strip().replace("sudo ", "")
    for line in re.sub(r"\\\n\s+", "", PAGE).splitlines()
    if re.match(r"    (?:.*\* )?(?:sudo )?(?:systemctl|docker|kubectl|cp|install) ", line)
]
OBJECTS = {
    f"{document['kind'].lower()}/{document['metadata']['name']}"
    for path in DEPLOY.glob("kubernetes/*.yaml")
    for document in read_documents(path)
}
KINDS = {"deploy": "deployment", "sts": "statefulset"}


def list_commands(program: str) -> list[list[str]]:
    found = [
        command[command.index(program) :] for command in COMMANDS if re.search(rf"\b{program} ", command)
    ]
    assert found
    return [
        shlex.split(part) for command in found for part in command.split(" && ") if part.startswith(program)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    links = re.findall(r"\]\(((?:\.\./)?[\w./-]+)(?:#[\w-]+)?\)", PAGES[page])
    assert links
    for link in links:
        assert ((ROOT / page).parent / link).exists(), link
    for path in re.findall(r"(?<![\w/])deploy/[\w./-]*\w", PAGES[page]):
        assert (ROOT / path).exists() or path in ("deploy/.env", "deploy/eventservice-web"), path


def test_the_tasks_at_the_top_lead_to_sections_of_the_page() -> None:
    headings = {
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", PAGE, re.M)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) - headings == set()


def test_the_readme_of_deploy_lists_every_file() -> None:
    rows = re.findall(r"^\| (`.+?`) \| ", PAGES["deploy/README.md"], re.M)
    documented = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    names = {
        path.relative_to(DEPLOY).as_posix()
        for path in DEPLOY.rglob("*")
        if path.is_file() and path.name != "README.md"
    }
    assert {name for name in names if not {name, name.partition("/")[0] + "/"} & documented} == set()


def test_every_manifest_is_described() -> None:
    described = set(re.findall(r"^\| `([\w-]+\.yaml)` \|", PAGE, re.M))
    assert described == {path.name for path in DEPLOY.glob("kubernetes/*.yaml")}


def test_units_that_are_started_exist() -> None:
    units = {
        unit if "." in unit else f"{unit}.service"
        for command in list_commands("systemctl")
        for unit in command
        if unit.startswith("eventservice-")
    }
    assert len(units) == 3
    assert all((DEPLOY / "systemd" / unit).exists() for unit in units)


def test_services_that_compose_is_told_to_use_exist() -> None:
    commands = [command for command in list_commands("docker") if command[1] == "compose"]
    assert len(commands) >= 5
    for command in commands:
        _, _, _, path, action, *arguments = command
        (document,) = read_documents(DEPLOY / path.rpartition("/")[2])
        if action in ("exec", "run"):
            service = next(argument for argument in arguments if not argument.startswith("-"))
            assert service in document["services"]
        else:
            assert (action, arguments) == ("up", ["--detach"])


def test_objects_that_kubectl_is_told_to_use_exist() -> None:
    named = re.findall(
        r"\b(deploy|deployment|statefulset|job|secret generic)[/ ](eventservice[\w-]*)", "\n".join(COMMANDS)
    )
    assert len(named) >= 5
    for kind, name in named:
        assert kind == "secret generic" or f"{KINDS.get(kind, kind)}/{name}" in OBJECTS


def test_the_image_has_the_version_of_the_release() -> None:
    tags = re.findall(rf"{IMAGE_NAME}:(\d[\w.]*)", PAGE + (DEPLOY / "env.example").read_text())
    assert len(tags) >= 3
    assert set(tags) == {VERSION}
