"""Tags and the favorite tag: a response's tags can be sent back, and changing tags leaves the favorite alone."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from orchestration.models import ServiceCall, ServiceCallTag
from tests.api.conftest import SPEC, Api, build_submission, get_errors

pytestmark = pytest.mark.django_db

TWENTY = [f"t{number}" for number in range(20)]


@pytest.fixture
def favorite(acme: Api) -> str:
    path = f"/service-calls/{acme.submit(tags=TWENTY)['serviceCallId']}"
    assert acme("PUT", f"{path}/favorite").status_code == 204
    return path


@pytest.mark.parametrize("favorite_by", ["favorite", "tags/favorite"])
def test_a_favorite_does_not_count_as_a_tag(acme: Api, favorite_by: str) -> None:
    path = f"/service-calls/{acme.submit(tags=TWENTY[:19])['serviceCallId']}"
    for part, status in ((favorite_by, 204), ("tags/t19", 204), ("tags/t19", 204), ("tags/one-more", 409)):
        assert acme("PUT", f"{path}/{part}").status_code == status, part
    assert acme("DELETE", f"{path}/favorite").status_code == 204
    assert acme("PUT", f"{path}/{favorite_by}").status_code == 204


def test_the_tags_of_a_response_can_be_sent_back(acme: Api, favorite: str) -> None:
    shown: dict[str, Any] = acme.get(favorite).json()
    assert len(shown["tags"]) == 21
    again = acme("PATCH", favorite, {"tags": shown["tags"]})
    assert (again.status_code, again.json()["tags"]) == (200, shown["tags"])
    assert acme.submit(tags=shown["tags"])["favorite"]


@pytest.mark.parametrize("tags", [[], ["a"], ["a", "favorite"]])
def test_changing_tags_leaves_the_favorite_alone(acme: Api, favorite: str, tags: list[str]) -> None:
    changed = acme("PATCH", favorite, {"tags": tags}).json()
    assert (changed["favorite"], changed["tags"]) == (True, sorted({*tags, "favorite"}))


def test_changing_tags_does_not_make_a_favorite(acme: Api) -> None:
    path = f"/service-calls/{acme.submit()['serviceCallId']}"
    changed = acme("PATCH", path, {"tags": ["a", "favorite"]}).json()
    assert (changed["favorite"], changed["tags"]) == (False, ["a"])


def test_twenty_one_tags_are_too_many(acme: Api, favorite: str) -> None:
    tags = [*TWENTY, "one-more"]
    for refused in (
        acme("PATCH", favorite, {"tags": tags}),
        acme.post("/service-calls", build_submission(tags=tags)),
    ):
        assert list(get_errors(refused)) == ["/tags"]


# --- what nobody sees ---------------------------------------------------------------------------------------------

UNSEEN = ["\x9b", "\u202e", "\u2066", "\u200b", "\u200f", "\u2060", "\ufeff", "\u00ad"]


@pytest.mark.parametrize("character", UNSEEN)
def test_names_have_no_bidirectional_and_zero_width_characters(acme: Api, character: str) -> None:
    name = f"ad{character}min"
    timer = {"id": name, "executeAt": "2030-01-01T00:00:00Z", "callbackUrl": "http://target.test/"}
    for path, body in (
        ("/service-calls", build_submission(name=name)),
        ("/service-calls", build_submission(tags=[name])),
        ("/timers/create", timer),
        ("/api-keys", {"name": name, "scopes": ["read"]}),
    ):
        (rule,) = get_errors(acme.post(path, body)).values()
        assert "one line without control, bidirectional and zero-width characters" in rule
    call = acme.submit(requestSpec={**SPEC, "body": name})["serviceCallId"]
    assert acme("PUT", f"/service-calls/{call}/tags/{quote(name)}").status_code == 400
    assert acme.get(f"/service-calls/{call}").json()["requestSpec"]["body"] == name


def test_emojis_and_other_scripts_are_taken_in_names(acme: Api) -> None:
    for name in ("👩\u200d💻 deploy", "می\u200cخواهم", "שלום", "日本語"):
        assert acme.submit(name=name)["name"] == name
    assert "/tags/0" in get_errors(acme.post("/service-calls", build_submission(tags=["a\u200db"])))


def test_what_was_stored_before_can_still_be_removed(acme: Api) -> None:
    call = acme.submit(tags=["old"])["serviceCallId"]
    ServiceCallTag.across_tenants.update(tag="o\u202eld")
    assert (
        acme("DELETE", f"/service-calls/{call}/tags/{quote(chr(0x6F) + chr(0x202E) + 'ld')}").status_code
        == 204
    )
    assert acme.get(f"/service-calls/{call}").json()["tags"] == []
    timer = {"id": "t", "executeAt": "2030-01-01T00:00:00Z", "callbackUrl": "http://target.test/"}
    acme.post("/timers/create", timer)
    ServiceCall.across_tenants.filter(external_id="t").update(external_id="t\u200b")
    assert acme.post("/timers/delete", {"timerId": "t\u200b"}).status_code == 204
