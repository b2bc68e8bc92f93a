"""Client and administration commands, against a running server."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import BaseCommand, CommandError, call_command

from eventservice.kernel.ttl_cache import clear_caches
from eventservice.management.terminal import Terminal
from eventservice.tenants.directory import create_tenant
from eventservice.tenants.keys import create_key, find_key
from eventservice.tenants.models import ApiKey, Tenant
from orchestration.models import ServiceCall
from tests.factories import NOON, ServiceCallFactory

pytestmark = pytest.mark.django_db(transaction=True)


class TerminalOutput(StringIO):
    def isatty(self) -> bool:
        return True


NOBODY = "01900000-0000-7000-8000-000000000000"


def run_command(*args: str, **options: Any) -> str:
    out = StringIO()
    call_command(*args, **{"stdout": out, **options})
    return out.getvalue()


class Run:
    """Run commands as a client of this tenant."""

    def __init__(self, url: str, tenant: Tenant, key: str) -> None:
        self.tenant_id = str(tenant.tenant_id)
        self._at = {"url": url, "tenant": self.tenant_id, "key": key}

    def __call__(self, *args: str, **options: Any) -> str:
        return run_command(*args, **{**self._at, **options})

    def refused(self, *args: str) -> tuple[str, str]:
        """Run a command that is refused. Return its output and its error output."""
        out, errors = StringIO(), StringIO()
        with pytest.raises(SystemExit) as ended:
            self(*args, stdout=out, stderr=errors)
        assert ended.value.code == 1
        return out.getvalue(), errors.getvalue()


@pytest.fixture
def run(served: str) -> Run:
    clear_caches()
    tenant = create_tenant("acme")
    _, key = create_key(tenant.tenant_id, list(ApiKey.Scope))
    return Run(served, tenant, key)


def submit(run: Run, *more: str, **options: Any) -> dict[str, Any]:
    submitted = run("submit", "greet", "post", "http://target.test/", "--json", *more, **options)
    made: dict[str, Any] = json.loads(submitted)
    return made


def test_a_call_is_submitted_shown_listed_canceled_and_replayed(run: Run) -> None:
    call = submit(run, "--body", '{"n": 1}', "-H", "X-A: b", "--in", "1h", "--tag", "x", "--attempts", "3")
    assert call["requestSpec"] == {
        "method": "POST", "url": "http://target.test/", "headers": {"X-A": "b"}, "body": {"n": 1},
    }  # fmt: skip
    one = call["serviceCallId"]
    assert "greet" in run("calls")
    assert "ServiceCallSubmitted" in run("call", one)
    assert json.loads(run("calls", "--json", "--tag", "x"))[0]["serviceCallId"] == one
    assert json.loads(run("calls", "--json", "--tag", "other")) == []
    assert "No call" in run("calls", "--tag", "other")
    assert "Canceled" in run("cancel", one)
    assert json.loads(run("replay", one, "--json"))[0]["replayOf"] == one
    shown = json.loads(run("call", one, "--json"))
    assert [event["seq"] for event in shown["events"]] == [1, 2, 3]


def test_a_trace_is_one_time_line_of_calls_timers_events_and_replays(run: Run) -> None:
    call = submit(run, "--in", "1h")
    run("cancel", call["serviceCallId"])
    run("replay", call["serviceCallId"])
    shown = run("trace", call["correlationId"])
    assert "1: 1 Canceled" in shown
    lines = [line for line in shown.splitlines() if call["serviceCallId"] in line]
    assert [line.split()[0] for line in lines] == sorted(line.split()[0] for line in lines)
    found = [
        word
        for line in lines
        for word in ("Submitted", "Scheduled (", "Canceled (", "replayed")
        if word in line
    ]
    assert found == ["Submitted", "Scheduled (", "Canceled (", "replayed"]
    assert json.loads(run("trace", call["correlationId"], "--json"))["items"][0]["eventCount"] == 3


def test_the_trace_of_the_newest_call_has_its_timer(run: Run) -> None:
    with pytest.raises(CommandError, match="There are no calls yet"):
        run("trace", "last")
    call = submit(run, "--in", "1h")
    shown = run("trace", "last")
    assert re.search(rf"{call['dueAt']}.*timer due", shown)
    assert re.search(r"timer set +due ", shown)


def test_a_trace_that_does_not_exist_is_refused(run: Run) -> None:
    with pytest.raises(CommandError, match="No such trace"):
        run("trace", NOBODY)
    with pytest.raises(CommandError, match="is not a correlation id"):
        run("trace", "nonsense")


def test_a_refused_request_exits_with_1(run: Run) -> None:
    with pytest.raises(CommandError, match="target is refused") as refused:
        run("submit", "greet", "GET", "nonsense")
    assert refused.value.returncode == 1


@pytest.mark.parametrize(
    ("option", "argument"),
    [
        ("--in=soon", "--in must be a duration"),
        ("--at=soon", "--at must be"),
        ("--tag=a\nb", "--tag must"),
        ("--attempts=0", "--attempts must be at least 1"),
        ("--initial-delay=soon", "--initial-delay must be a duration"),
        ("--max-delay=soon", "--max-delay must be a duration"),
        ("--timeout=9999h", "--timeout must be at most"),
        ("--header=Host: x", "--header is refused"),
    ],
)
def test_a_refusal_names_the_argument_and_no_json_pointer(run: Run, option: str, argument: str) -> None:
    with pytest.raises(CommandError) as refused:
        submit(run, option)
    assert str(refused.value).startswith("Refused (400 ")
    assert argument in str(refused.value)
    assert "  /" not in str(refused.value)


def test_a_key_that_no_header_can_carry_is_not_sent(run: Run) -> None:
    with pytest.raises(
        CommandError, match="The idempotency key 'a b' was not sent: it must be 1 to 255 visible"
    ):
        submit(run, "--idempotency-key=a b")


def test_an_address_that_may_not_be_called_is_refused_by_the_name_of_the_setting(
    run: Run, settings: Any
) -> None:
    settings.EGRESS_ALLOW = []
    with pytest.raises(CommandError, match=r"target is refused: .* with the setting EGRESS_ALLOW"):
        run("submit", "greet", "POST", "http://127.0.0.1:3000/")


def test_a_filter_that_the_service_refuses_is_named_as_an_option(run: Run) -> None:
    with pytest.raises(CommandError, match="--host must"):
        run("calls", "--host", "x" * 3000)


def test_a_list_says_that_there_are_more_calls(run: Run) -> None:
    for _ in range(3):
        submit(run)
    assert "more than these 2: see --limit" in run("calls", "--limit=2")
    assert "more than these" not in run("calls", "--limit=3")
    assert len(json.loads(run("calls", "--limit=2", "--json"))) == 2


def test_a_status_is_accepted_in_any_case(run: Run) -> None:
    one = submit(run, "--in", "1h")["serviceCallId"]
    for status in ("scheduled", "Scheduled", "SCHEDULED"):
        assert json.loads(run("calls", "--json", "--status", status))[0]["serviceCallId"] == one
    assert json.loads(run("calls", "--json", "--status", "failed", "--status", "running")) == []
    with pytest.raises(CommandError, match="invalid choice: 'late'"):
        run("calls", "--status", "late")


def test_the_delays_between_attempts_are_given_as_durations(run: Run) -> None:
    call = submit(run, "--in", "1h", "--initial-delay", "1s", "--max-delay", "5s")
    assert call["retryPolicy"]["initialInterval"] == "1s"
    assert call["retryPolicy"]["maxInterval"] == "5s"


def test_the_newest_call_can_be_shown_without_its_id(run: Run) -> None:
    with pytest.raises(CommandError, match="There are no calls yet") as refused:
        run("call", "last")
    assert refused.value.returncode == 1
    submit(run, "--in", "1h")
    newest = submit(run, "--in", "1h")["serviceCallId"]
    assert json.loads(run("call", "last", "--json"))["serviceCallId"] == newest


def test_the_newest_call_can_be_canceled_and_replayed_without_its_id(run: Run) -> None:
    for command in ("cancel", "replay"):
        with pytest.raises(CommandError, match="There are no calls yet"):
            run(command, "last")
    older, newest = (submit(run, "--in", "1h")["serviceCallId"] for _ in "ab")
    assert run("cancel", "last").startswith(f"{newest}  Canceled")
    first, second = json.loads(run("replay", "last", "last", "--json"))
    assert first["replayOf"] == newest
    assert second["serviceCallId"] == first["serviceCallId"]
    assert json.loads(run("call", older, "--json"))["status"] == "Scheduled"


def test_replaying_the_newest_call_twice_makes_one_replay(run: Run) -> None:
    newest = create_canceled_call(run)
    (first,) = json.loads(run("replay", "last", "--json"))
    (second,) = json.loads(run("replay", "last", "--json"))
    assert first["replayOf"] == newest
    assert second["serviceCallId"] == first["serviceCallId"]
    assert len(list_replays(run)) == 1
    (again,) = json.loads(run("replay", "last", "--again", "--json"))
    assert again["replayOf"] == newest
    assert len(list_replays(run)) == 2


def test_a_repeated_idempotency_key_is_mentioned(run: Run) -> None:
    message = "This idempotency key was used before: this is its call."
    calls, errors = [], []
    for _ in "ab":
        error = StringIO()
        arguments = ("submit", "greet", "POST", "http://target.test/", "--in=1h", "--json")
        calls.append(json.loads(run(*arguments, "--idempotency-key=k", stderr=error)))
        errors.append(error.getvalue().strip())
    assert calls[0] == calls[1]
    assert errors == ["", message]
    with pytest.raises(
        CommandError, match="--idempotency-key was used for another request: repeat exactly that one"
    ) as refused:
        submit(run, "--idempotency-key=k", "--tag=other")
    assert f"The call of the first request: {calls[0]['serviceCallId']}" in str(refused.value)


def test_an_unreachable_service_exits_with_3(run: Run) -> None:
    with pytest.raises(CommandError) as broken:
        run("cancel", NOBODY, url="http://127.0.0.1:9")
    assert broken.value.returncode == 3
    assert f"http://127.0.0.1:9/api/v1/tenants/{run.tenant_id}" in str(broken.value)
    assert "EVENTSERVICE_URL or --url" in str(broken.value)


def test_a_redirect_is_refused(run: Run, served: str) -> None:
    with pytest.raises(CommandError, match="redirects to /admin/login/") as refused:
        run("calls", url=f"{served}/admin")
    assert refused.value.returncode == 1


def create_canceled_call(run: Run) -> str:
    """Create a call that can be replayed and return its id."""
    one = str(submit(run, "--in", "1h")["serviceCallId"])
    run("cancel", one)
    return one


def list_replays(run: Run) -> list[dict[str, Any]]:
    return [call for call in json.loads(run("calls", "--json")) if call["replayOf"]]


@pytest.mark.parametrize("command", ["cancel", "replay"])
def test_a_refusal_names_the_call_and_does_not_stop_the_others(run: Run, command: str) -> None:
    first, last = [
        create_canceled_call(run) if command == "replay" else submit(run, "--in", "1h")["serviceCallId"]
        for _ in "ab"
    ]
    out, errors = run.refused(command, first, NOBODY, last)
    assert [line.split()[0] for line in out.splitlines()] == [first, last]
    assert errors.startswith(f"{NOBODY}: 404 not_found")


def test_json_output_lists_the_calls_that_were_replayed(run: Run) -> None:
    one = create_canceled_call(run)
    out, errors = run.refused("replay", one, NOBODY, "--json")
    assert [call["replayOf"] for call in json.loads(out)] == [one]
    assert NOBODY in errors


def test_a_repeated_replay_shows_the_existing_one(run: Run) -> None:
    one = create_canceled_call(run)
    run("replay", one)
    (made,) = list_replays(run)
    assert made["serviceCallId"] in run("replay", one)
    assert json.loads(run("replay", one, "--json"))[0]["serviceCallId"] == made["serviceCallId"]
    assert list_replays(run) == [made]


def test_a_call_can_be_replayed_again_on_request(run: Run) -> None:
    one = create_canceled_call(run)
    run("replay", one)
    run("replay", one, "--again")
    assert len(list_replays(run)) == 2


def test_a_call_is_replayed_again_if_the_replay_was_canceled(run: Run) -> None:
    one = create_canceled_call(run)
    run("replay", one)
    run("cancel", list_replays(run)[0]["serviceCallId"])
    run("replay", one)
    assert sorted(call["status"] for call in list_replays(run)) == ["Canceled", "Scheduled"]


def test_user_input_is_not_interpreted_as_markup(run: Run) -> None:
    one = submit(run, "--body", '{"note": "see [/docs]"}', "--tag", "[a]", "--in", "1h")["serviceCallId"]
    assert "see [/docs]" in run("call", one)
    assert "[a]" in run("calls")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{bad", "The body is not JSON and is sent as text, without Content-Type."),
        (" [1,", "The body is not JSON and is sent as text, without Content-Type."),
        ('{"good": 1}', None),
        ("just text", None),
    ],
)
def test_a_body_that_looks_like_json_and_is_none_is_reported(run: Run, body: str, said: str | None) -> None:
    errors = StringIO()
    submitted = submit(run, "--in", "1h", "--body", body, stderr=errors)
    assert errors.getvalue().strip() == (said or "")
    assert submitted["requestSpec"]["body"] == ({"good": 1} if body == '{"good": 1}' else body)


def test_a_body_with_a_content_type_is_not_reported_to_have_none(run: Run) -> None:
    errors = StringIO()
    submit(run, "--in", "1h", "--body", "{bad", "-H", "content-type: text/x-bad", stderr=errors)
    assert errors.getvalue().strip() == "The body is not JSON and is sent as text."


def test_the_list_of_calls_names_errors_like_the_console(run: Run) -> None:
    response = {"status": 404, "headers": {}, "bodySnippet": "", "latencyMs": 1.0}
    error = {"kind": "HttpStatus", "message": "It is not there.", "details": {}, "latencyMs": 1.0}
    ServiceCallFactory(
        tenant_id=run.tenant_id,
        status="Failed",
        finished_at=NOON,
        attempt=1,
        outcome_meta={"responseMeta": response, "errorMeta": error},
    )
    assert "HTTP 404" in run("calls")
    assert "HTTP 404 after 1.0 ms: It is not there." in run("call", "last")


def test_the_help_names_the_default_scopes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_command("apikey", "create", "--help")
    assert "(default: read and write)" in " ".join(capsys.readouterr().out.split())


def test_a_row_is_one_line_if_the_output_is_not_a_terminal(run: Run) -> None:
    call = submit(run, "--in", "1h", *(f"--tag=a-rather-long-tag-{n}" for n in range(10)))
    _, row = run("calls").splitlines()
    assert row.startswith(f"{call['serviceCallId']}  greet  Scheduled  {call['dueAt']}")
    assert row.endswith("a-rather-long-tag-9")


def draw_table(width: int, *columns: tuple[str, object], cut: Collection[str] = ()) -> list[str]:
    """Return the lines of a table with one row, as a terminal of this width shows them."""
    out = TerminalOutput()
    terminal = Terminal(BaseCommand(stdout=out), as_json=False)
    terminal.console.width = width
    terminal.table([name for name, _ in columns], [[value for _, value in columns]], empty="", cut=cut)
    return re.sub(r"\x1b\[[\d;]*m", "", out.getvalue()).splitlines()


def test_a_narrow_terminal_shortens_names_but_not_ids_and_times() -> None:
    columns = ("id", NOBODY), ("name", "n" * 40), ("due", "2026-03-01T12:00:00Z")
    _, row = draw_table(80, *columns, cut=["name"])
    assert row == f"{NOBODY}  {'n' * 19}…  2026-03-01T12:00:00Z"
    # Shorter names would be of no use.
    header, more_header, row, more_row = draw_table(60, *columns, cut=["name"])
    assert (header.split(), more_header) == (["id", "name"], "  due")
    assert row == f"{NOBODY}  {'n' * 21}…"
    assert more_row == "  2026-03-01T12:00:00Z"


def test_a_line_of_a_row_that_would_be_empty_is_left_out() -> None:
    lines = draw_table(50, ("id", NOBODY), ("due", "2026-03-01T12:00:00Z"), ("tags", ""), ("reason", None))
    assert lines[2:] == [NOBODY, "  2026-03-01T12:00:00Z"]
    lines = draw_table(40, ("id", NOBODY), ("reason", ""))
    assert lines == ["id", "  reason", NOBODY]


def test_nothing_is_lost_on_a_terminal_of_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tags = ["--tag=checkout", "--tag=high-priority", "--tag=region-eu"]
    call = submit(run, "--in", "1h", "--attempts", "5", *tags)
    webhook = ("add", "--tenant", "acme", "https://hooks.example/a/rather/long/path/for/a/receiver", "--json")
    endpoint = json.loads(run_command("webhook", *webhook))
    for command, expected in (
        (("calls",), [call["serviceCallId"], "greet", "Scheduled", call["dueAt"], "checkout, high-priority"]),
        (
            ("webhook", "list"),
            [
                endpoint["endpointId"],
                "active",
                "acme",
                "all",
                "https://hooks.example/a/rather/long/path/for/a",
            ],
        ),
        (("tenant", "list"), [run.tenant_id, "acme", "default (16"]),
    ):
        out = TerminalOutput()
        (run if command == ("calls",) else run_command)(*command, stdout=out)
        shown = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
        assert max(map(len, shown.splitlines())) <= 80, shown
        for text in expected:
            assert text in shown, shown


@pytest.mark.parametrize("command", ["call", "cancel", "replay"])
def test_an_invalid_id_is_a_usage_error(run: Run, command: str) -> None:
    with pytest.raises(CommandError, match="'nonsense' is not a call id"):
        run(command, "nonsense")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "localhost:8000"}, "'localhost:8000' is not a URL"),
        ({"url": "http://"}, "was not sent"),
        ({"url": "http://127.0.0.1:99999"}, "was not sent"),
        ({"key": "ключ"}, "a header or the API key contains"),
    ],
)
def test_an_invalid_url_or_key_is_a_usage_error(run: Run, options: dict[str, str], message: str) -> None:
    with pytest.raises(CommandError, match=message) as error:
        run("calls", **options)
    assert error.value.returncode == 2


@pytest.mark.parametrize("missing", ["tenant", "key"])
def test_a_missing_tenant_or_key_exits_with_2(run: Run, missing: str) -> None:
    with pytest.raises(CommandError, match=missing) as error:
        run("calls", **{missing: ""})
    assert error.value.returncode == 2


def test_waiting_for_a_call_that_does_not_finish_exits_with_1_and_says_how_to_follow_it(run: Run) -> None:
    _, submitted = run.refused("submit", "greet", "GET", "http://target.test/", "--in=1h", "--wait=0.1s")
    call_id = json.loads(run("call", "last", "--json"))["serviceCallId"]
    _, watched = run.refused("call", call_id, "--watch=0.1s")
    for message in (submitted, watched):
        assert (
            message.strip()
            == f"Still Scheduled after 0.1 s; follow it with `manage.py call {call_id} --watch`."
        )


def test_waiting_for_a_call_that_has_ended_without_success_exits_with_1_silently(run: Run) -> None:
    out, message = run.refused("call", create_canceled_call(run), "--watch=5s")
    assert "Canceled" in out
    assert message == ""


def test_tenants_and_keys_are_managed_in_the_database(run: Run) -> None:
    assert "acme" in run_command("tenant", "list")
    assert json.loads(run_command("tenant", "create", "fresh", "--json"))[0]["namespaces"] == [
        "default (16, small)"
    ]
    assert "blue (4)" in run_command("tenant", "namespace", "fresh", "blue", "--shards", "4")
    with pytest.raises(CommandError, match="exists"):
        run_command("tenant", "create", "fresh")
    made = json.loads(run_command("apikey", "create", "--tenant", "fresh", "--scope", "read", "--json"))
    assert made["key"].startswith("es_dev_")
    rotated = run_command("apikey", "rotate", made["keyId"]).strip()
    assert rotated.startswith("es_dev_")
    listed = run_command("apikey", "list", "--tenant", "fresh")
    assert "last used (updated hourly)" in listed
    assert made["keyId"] in listed
    assert rotated.rsplit("_", 1)[1] not in listed
    assert "Key revoked" in run_command("apikey", "revoke", made["keyId"])
    with pytest.raises(CommandError):
        run_command("apikey", "revoke", made["keyId"])


@pytest.mark.parametrize("body", ["NaN", '{"a": NaN}', "1e999"])
def test_a_body_that_json_cannot_represent_is_a_usage_error(run: Run, body: str) -> None:
    with pytest.raises(CommandError, match="was not sent") as error:
        run("submit", "greet", "POST", "http://target.test/", "--body", body)
    assert error.value.returncode == 2


@pytest.mark.parametrize("limit", ["0", "-1", "x"])
def test_a_limit_that_is_not_positive_is_a_usage_error(run: Run, limit: str) -> None:
    with pytest.raises(CommandError, match=f"--limit: '{limit}' is not a positive integer"):
        run("calls", f"--limit={limit}")


@pytest.mark.parametrize("option", ["--timeout", "--wait"])
@pytest.mark.parametrize("length", ["nan", "10", "0s", "99999d"])
def test_an_invalid_duration_is_a_usage_error(run: Run, option: str, length: str) -> None:
    with pytest.raises(CommandError, match=f"{option}: '{length}' is"):
        run("submit", "greet", "POST", "http://target.test/", option, length)


def test_the_timeout_of_an_attempt_is_a_duration(run: Run) -> None:
    assert submit(run, "--in", "1h", "--timeout", "1m30s")["timeoutSeconds"] == 90


@pytest.mark.parametrize("command", [("calls",), ("call", NOBODY)])
def test_an_invalid_watch_interval_is_a_usage_error(run: Run, command: tuple[str, ...]) -> None:
    for never in ("-1", "0s", "soon"):
        with pytest.raises(CommandError, match="--watch"):
            run(*command, f"--watch={never}")


@pytest.mark.parametrize(
    ("command", "max_length"), [(("create", "Bad Name"), 64), (("namespace", "acme", "Bad Name"), 255)]
)
def test_an_invalid_name_is_refused_with_the_rule(
    run: Run, command: tuple[str, ...], max_length: int
) -> None:
    with pytest.raises(CommandError) as refused:
        run_command("tenant", *command)
    assert str(refused.value).startswith(f"name must be 1-{max_length} lower-case letters")


def test_an_existing_namespace_keeps_its_number_of_shards(run: Run) -> None:
    run_command("tenant", "namespace", "acme", "blue", "--shards", "4")
    assert "blue (4)" in run_command("tenant", "namespace", "acme", "blue")
    with pytest.raises(CommandError, match="fixed at 4"):
        run_command("tenant", "namespace", "acme", "blue", "--shards", "16")
    with pytest.raises(CommandError, match="--shards must be at least 1"):
        run_command("tenant", "namespace", "acme", "green", "--shards", "0")


def test_a_namespace_is_created_by_its_size(run: Run) -> None:
    assert "blue (1024, large)" in run_command("tenant", "namespace", "acme", "blue", "--size", "large")
    with pytest.raises(CommandError, match="not allowed with argument"):
        run_command("tenant", "namespace", "acme", "green", "--size", "large", "--shards", "8")
    with pytest.raises(CommandError, match="invalid choice"):
        run_command("tenant", "namespace", "acme", "green", "--size", "huge")


def test_the_list_of_tenants_needs_a_constant_number_of_queries(django_assert_num_queries: Any) -> None:
    for name in ("one", "two", "three"):
        create_tenant(name)
    with django_assert_num_queries(2):
        listed = json.loads(run_command("tenant", "list", "--json"))
    assert [tenant["namespaces"] for tenant in listed] == [["default (16, small)"]] * 3


@pytest.mark.parametrize("name", ["n" * 101, "two\nlines"])
def test_the_name_of_a_key_has_at_most_100_characters(name: str) -> None:
    with pytest.raises(CommandError, match=r"^--name must be"):
        run_command("apikey", "create", "--operator", "--name", name)
    assert not ApiKey.across_tenants.exists()


def test_an_overlap_is_at_most_30_days() -> None:
    key, _ = create_key(None, ["read"])
    run_command("apikey", "rotate", key.key_id, "--overlap", "30d")
    with pytest.raises(CommandError, match="longer than 30d"):
        run_command("apikey", "rotate", key.key_id, "--overlap", "30d1s")


def test_without_an_overlap_a_key_expires_immediately() -> None:
    key, text = create_key(None, ["read"])
    run_command("apikey", "rotate", key.key_id, "--overlap", "0s")
    assert find_key(text) is None


def test_a_key_expires_after_its_lifetime(at_noon: datetime) -> None:
    run_command("apikey", "create", "--operator", "--expires", "30d")
    assert ApiKey.across_tenants.get().expires_at == at_noon + timedelta(days=30)


def test_a_tenant_is_found_by_name_or_id() -> None:
    tenant = create_tenant("fresh")
    run_command("apikey", "create", "--tenant", "fresh")
    run_command("apikey", "create", "--tenant", str(tenant.tenant_id))
    assert len(json.loads(run_command("apikey", "list", "--tenant", str(tenant.tenant_id), "--json"))) == 2
    assert "blue (4)" in run_command("tenant", "namespace", str(tenant.tenant_id), "blue", "--shards", "4")


def test_an_unknown_tenant_gets_no_key() -> None:
    for nobody in ("nobody", NOBODY, ""):
        with pytest.raises(CommandError, match="There is no tenant"):
            run_command("apikey", "create", "--tenant", nobody)
    assert json.loads(run_command("apikey", "list", "--json")) == []


@pytest.mark.parametrize("length", ["-1d", "0s", "nan", "36501d", "soon"])
def test_an_invalid_lifetime_is_refused(length: str) -> None:
    with pytest.raises(CommandError, match="--expires"):
        run_command("apikey", "create", "--operator", f"--expires={length}")


def test_the_list_marks_keys_that_depend_on_a_fallback_of_the_secret_key(settings: Any) -> None:
    run_command("apikey", "create", "--operator", "--name", "old")
    assert json.loads(run_command("apikey", "list", "--json"))[0]["secretKey"] is None
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "new"
    run_command("apikey", "create", "--operator", "--name", "fresh")
    rows = json.loads(run_command("apikey", "list", "--json"))
    assert {row["name"]: row["secretKey"] for row in rows} == {"old": "fallback", "fresh": None}
    lines = run_command("apikey", "list").splitlines()
    assert [line.endswith("  fallback") for line in lines if "old" in line] == [True]


def test_an_empty_list_of_operator_keys_mentions_the_tenant_option() -> None:
    assert "--tenant NAME to list the keys of a tenant" in run_command("apikey", "list")


def test_the_terminal_obeys_nothing_that_a_call_contains(run: Run) -> None:
    evil = "a\x9b31m\u202eb\x1b]0;t\x07"
    made = json.loads(
        run("submit", "x", "POST", "http://target.test/", "--body", evil, "--in", "1h", "--json")
    )
    call_id = made["serviceCallId"]
    ServiceCall.across_tenants.update(name=evil)
    for command in (
        ("call", call_id),
        ("calls",),
        ("call", call_id, "--json"),
        ("calls", "--json"),
        ("cancel", call_id),
    ):
        printed = run(*command)
        assert "31m" in printed, command
        assert not set("\x9b\u202e\x1b\x07") & set(printed), command
    assert json.loads(run("call", call_id, "--json"))["name"] == evil
    _, errors = run.refused("cancel", call_id)
    assert "be canceled: it must be Scheduled or Running" in errors


def test_the_limits_of_a_tenant_are_shown_and_changed() -> None:
    tenant_id = create_tenant("acme").tenant_id
    for status in ("Scheduled", "Scheduled", "Running"):
        ServiceCallFactory(tenant_id=tenant_id, status=status)
    shown = json.loads(run_command("tenant", "limits", "acme", "--json"))
    assert (shown["requestsPerMinute"], shown["storedBytes"]) == (60_000, 0)
    assert (shown["inFlight"], shown["pending"]) == (1, 2)
    assert re.search(r"^maxPending +1,000,000 +2$", run_command("tenant", "limits", "acme"), re.M)
    changed = run_command(
        "tenant", "limits", "acme", "--bytes-per-minute", "5000000", "--max-stored-bytes", "7000000"
    )
    assert "5,000,000" in changed
    tenant = Tenant.objects.get(name="acme")
    assert (tenant.bytes_per_minute, tenant.max_stored_bytes, tenant.max_pending) == (
        5_000_000,
        7_000_000,
        1_000_000,
    )
    with pytest.raises(CommandError, match="--bytes-per-minute must be at least 1024"):
        run_command("tenant", "limits", "acme", "--bytes-per-minute", "5")
