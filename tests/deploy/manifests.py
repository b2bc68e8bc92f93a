"""Reads the files of deploy/, as the programs do for which they were written."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
IMAGE_NAME = "eventservice"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

Document = dict[str, Any]
# The sections of a systemd unit. A name may have several values.
Unit = dict[str, dict[str, list[str]]]


def read_documents(path: Path) -> list[Document]:
    """Return the documents of a YAML file. Raise ValueError for a key that occurs twice, of which YAML would drop one."""
    return [document for document in yaml.load_all(path.read_text(), _StrictLoader) if document is not None]


class _StrictLoader(yaml.SafeLoader):
    pass


def _build_mapping(loader: _StrictLoader, node: yaml.MappingNode) -> Document:
    keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
    if repeated := {key for key in keys if keys.count(key) > 1}:
        raise ValueError(f"line {node.start_mark.line + 1}: {', '.join(sorted(repeated))} occurs twice")
    loader.flatten_mapping(node)
    return {
        loader.construct_object(key, deep=True): loader.construct_object(value, deep=True)
        for key, value in node.value
    }


_StrictLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _build_mapping)


def read_dockerfile() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, with their arguments on one line."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [(name, " ".join(rest.split())) for name, rest in re.findall(r"^([A-Z]+) +(.+)$", text, re.M)]


def read_unit(path: Path) -> Unit:
    sections: Unit = {}
    section: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        else:
            name, _, value = line.partition("=")
            section.setdefault(name, []).append(value)
    return sections
