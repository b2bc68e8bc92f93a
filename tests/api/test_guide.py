"""The examples in docs/api.md work as they are, from top to bottom, and its tables are complete."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.conf import settings

from eventservice.api.problems import CODES
from eventservice.api.schema.queries import DEFAULT_LIMIT, MAX_LIMIT
from eventservice.api.schema.submissions import DEFAULT_TIMEOUT, MAX_NAME_LENGTH, MAX_TAG_LENGTH
from eventservice.api.schema.timers import MAX_TIMER_ID_LENGTH
from eventservice.devtools.mock_target import PATHS
from eventservice.operators.error_kinds import ERROR_NAMES
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.models import Tenant
from execution.outcome import ErrorKind
from execution.url_rules import MAX_URL_LENGTH
from orchestration.outcome_rules import MAX_SNIPPET_LENGTH, RETRYABLE_ERRORS
from orchestration.states import MAX_TAGS
from tests.api.conftest import Api, create_api
from tests.process_harness import ProcessHarness, harness
from tests.source_rules import is_within, list_sources

__all__ = ["harness"]

# Each endpoint is called on every database by test_every_endpoint_over_http.
pytestmark = pytest.mark.sqlite_only

FOLDER = Path(__file__).parents[2]
PAGE = (FOLDER / "docs" / "api.md").read_text()
MOCK_TARGET = "http://127.0.0.1:9000"
MARK = "--- end of an example ---"


# What these raise reaches no client of the API.
NOT_IN_THE_API = (
    "eventservice.console", "eventservice.adminsite", "eventservice.operators", "eventservice.management",
    "orchestration.admin", "outbox.admin", "eventservice.tenants.admin", "outbox.publishers", "timers.stores",
)  # fmt: skip
# Of commands that only the console gives.
CONSOLE_CODES = {"replayed_before"}
# Of errors that the API reports as an invalid member.
CAUGHT_CODES = {"unknown_namespace"}
# Which argument is the code.
CODE_ARGUMENT = {"Problem": 1, "Conflict": 0, "SubmissionConflict": 0, "Invalid": 0, "super().__init__": 0}
RAISED = re.compile(r"[a-z]+(_[a-z]+)*")


class Example(NamedTuple):
    commands: str
    kind: str | None  # of what it prints: json, text, or None if the page does not say
    output: str


def list_examples() -> list[Example]:
    blocks = re.findall(r"```sh\n(.*?)```(?:\n```(json|text)\n(.*?)```)?", PAGE, re.DOTALL)
    return [Example(commands, kind or None, output) for commands, kind, output in blocks]


@pytest.fixture
def printed(harness: ProcessHarness, served: str) -> list[str]:
    """Return what each example prints when all of them run in one shell."""
    acme = create_api(create_tenant("acme"))
    target = harness.start_target()
    harness.start_engine()
    script = "".join(f"{example.commands}\necho; echo '{MARK}'\n" for example in list_examples())
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script.replace(MOCK_TARGET, target.url)],
        env={
            **os.environ,
            "EVENTSERVICE_URL": served,
            "EVENTSERVICE_TENANT": str(acme.tenant.tenant_id),
            "EVENTSERVICE_KEY": acme.key,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    *outputs, _ = done.stdout.replace(target.url, MOCK_TARGET).split(MARK)
    return outputs


def find_differences(shown: Any, found: Any, at: str = "") -> Iterator[str]:
    """Yield what the page shows and the output does not have. The output may have more members."""
    if isinstance(shown, dict) and isinstance(found, dict):
        for name, value in shown.items():
            yield from find_differences(value, found.get(name, "(missing)"), f"{at}/{name}")
    elif isinstance(shown, list) and isinstance(found, list):
        if len(shown) != len(found):
            yield f"{at} has {len(found)} items"
        for index, (value, other) in enumerate(zip(shown, found, strict=False)):
            yield from find_differences(value, other, f"{at}/{index}")
    elif isinstance(shown, str) and "…" in shown:
        pattern = ".*".join(map(re.escape, shown.split("…")))
        if not isinstance(found, str) or not re.fullmatch(pattern, found):
            yield f"{at} is {found!r}"
    elif shown != found:
        yield f"{at} is {found!r}"


@pytest.mark.django_db(transaction=True)
def test_its_examples_print_what_it_shows(printed: list[str]) -> None:
    examples = list_examples()
    assert len(examples) == len(printed) >= 20
    for example, output in zip(examples, printed, strict=True):
        if example.kind == "json":
            document = json.loads(output.strip().splitlines()[-1])
            wrong = list(find_differences(json.loads(example.output), document))
            assert wrong == [], (example.commands, output)
        elif example.kind == "text":
            lines = output.replace("\r", "").splitlines()
            assert [line for line in example.output.splitlines() if line not in lines] == [], output


def list_raised_codes() -> set[str]:
    """Return the codes of the problems and domain errors that the code raises, and of the permission classes."""
    codes: set[object] = set()
    for source in list_sources():
        if any(is_within(source.name, package) for package in NOT_IN_THE_API):
            continue
        calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
        for call in calls:
            name = ast.unparse(call.func)
            index = CODE_ARGUMENT.get(name, CODE_ARGUMENT.get(f"{source.name}.{name}", len(call.args)))
            codes |= {getattr(argument, "value", None) for argument in call.args[index : index + 1]}
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "code":
                codes.add(getattr(node.value, "value", None))
    return (
        {code for code in codes if isinstance(code, str) and RAISED.fullmatch(code)}
        - CONSOLE_CODES
        - CAUGHT_CODES
    )


def test_its_table_has_every_error_code() -> None:
    table = PAGE.partition("\n## Errors")[2].partition("\n## ")[0]
    documented = {
        code
        for row in re.findall(r"^\| [\d, ]+ \|(.*?)\|", table, re.M)
        for code in re.findall(r"`(\w+)`", row)
    }
    known = set(CODES.values()) | list_raised_codes()
    assert sorted(known - documented) == []
    literals = {
        node.value
        for source in list_sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant)
    }
    assert sorted(documented - literals) == []


def test_its_table_has_every_kind_of_error_and_says_which_are_retried() -> None:
    table = PAGE.partition("\n## Why a call failed")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([A-Z]\w+)` \| (.*?) \| .*? \| (.*?) \|$", table, re.M)
    assert {kind for kind, *_ in rows} == set(ErrorKind)
    assert {kind for kind, _, retried in rows if retried == "Yes"} == RETRYABLE_ERRORS
    names = {**ERROR_NAMES, ErrorKind.HTTP_STATUS: "HTTP and the status, such as HTTP 404"}
    assert {kind: name for kind, name, _ in rows} == names
    assert f"the first {MAX_SNIPPET_LENGTH:,} bytes" in table


def test_it_lists_the_paths_of_the_mock_target() -> None:
    table = PAGE.partition("| Path | Response |")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `(/.*?)` \|", table, re.M)) == PATHS


def test_its_client_is_a_file_that_can_be_copied() -> None:
    assert '"http://127.0.0.1:8000", tenant_id, api_key' in PAGE
    source = (FOLDER / "eventservice" / "client.py").read_text()
    imported = [
        name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        )
    ]
    outside = {str(name).partition(".")[0] for name in imported} - set(sys.stdlib_module_names)
    assert outside == {"requests"}


def test_its_limits_are_those_of_the_code() -> None:
    defaults = {field.name: field.default for field in Tenant._meta.fields}
    for text in (
        f"| {defaults['requests_per_minute']:,} per minute |",
        f"| {defaults['bytes_per_minute'] / 10**6:.0f} MB per minute | `bytesPerMinute`",
        f"| {defaults['max_stored_bytes'] / 10**9:.0f} GB | `maxStoredBytes`",
        f"| {defaults['max_pending']:,} | `maxPending`",
        f"| {defaults['max_in_flight']:,} | `maxInFlight`",
        f"| Body of a call | {settings.API_MAX_BODY_BYTES / 2**20:.0f} MiB |",
        f"| Request other than a batch | {settings.API_MAX_REQUEST_BYTES / 2**20:.0f} MiB |",
        f"| Batch | {settings.API_MAX_BATCH:,} calls, {settings.API_MAX_BATCH_BYTES / 2**20:.0f} MiB |",
        f"{DEFAULT_TIMEOUT:.0f} s, at least 0.1 s, at most {settings.API_MAX_TIMEOUT_SECONDS / 3600:.0f} h",
        f"{MAX_NAME_LENGTH}, {MAX_TIMER_ID_LENGTH} and {MAX_URL_LENGTH:,} characters",
        f"({DEFAULT_LIMIT} by default, at most {MAX_LIMIT})",
        f"up to {MAX_TAGS} tags of up to {MAX_TAG_LENGTH} characters",
        f"({settings.API_MAX_WAIT_SECONDS} seconds by default",
    ):
        assert text in PAGE, text


def test_the_readme_links_to_it() -> None:
    assert "(docs/api.md)" in (FOLDER / "README.md").read_text()


# --- the examples of the OpenAPI document ------------------------------------------------------------------------


@pytest.fixture
def document(acme: Api) -> Any:
    return json.loads(acme.get("/api/v1/openapi.json").content)


@pytest.mark.django_db
def test_the_default_examples_of_openapi_are_accepted(operator: Api, document: Any) -> None:
    """Swagger UI offers the example of a body as the one to send."""
    known = {
        "tenantId": str(operator.tenant.tenant_id),
        "serviceCallId": operator.submit()["serviceCallId"],
        "keyId": operator.post("/api-keys", {"scopes": ["read"]}).json()["keyId"],
    }
    sent = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if "requestBody" not in operation:
                continue
            example = operation["requestBody"]["content"]["application/json"]["example"]
            answer = operator(method.upper(), path.format(**known), example)
            assert answer.status_code < 300, (method, path, answer.content)
            sent += 1
    assert sent >= 10


@pytest.mark.django_db
def test_the_default_parameters_of_openapi_are_accepted(operator: Api, document: Any) -> None:
    """Swagger UI fills in the default, or else the example, of each parameter."""
    call = operator.submit(tags=["x"])
    known = {
        "tenantId": str(operator.tenant.tenant_id), "serviceCallId": call["serviceCallId"],
        "correlationId": call["correlationId"], "name": "default", "tag": "x",
    }  # fmt: skip
    sent = 0
    for path, operations in document["paths"].items():
        if "get" not in operations:
            continue
        filled = {
            parameter["name"]: parameter["schema"].get(
                "default", parameter["schema"].get("examples", [None])[0]
            )
            for parameter in operations["get"].get("parameters", [])
            if parameter["in"] == "query"
        }
        query = "&".join(f"{name}={value}" for name, value in filled.items() if value is not None)
        answer = operator.get(f"{path.format(**known)}?{query}")
        assert answer.status_code == 200, (path, query, answer.content)
        sent += 1
    assert sent >= 10
