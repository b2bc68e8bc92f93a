"""Tags and the favorite tag: a response's tags can be sent back, and changing tags leaves the favorite alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Api, build_submission, get_errors

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
