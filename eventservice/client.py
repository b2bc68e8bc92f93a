"""A client of the REST API.

    from eventservice.client import Client

    client = Client("http://127.0.0.1:8000", tenant_id, api_key)
    call = client.submit("greet", "POST", "https://example.com/hello", body={"name": "Ada"}, delay="90s")
    call = client.wait(call["serviceCallId"])

A submission carries an idempotency key, its own or one that is made for it, so that it is safe to send it again
when a connection breaks, or when the service cannot say whether it was stored (503); so are reads and deletions.
Everything else is sent again only when it was refused unread (429): when a timer that was created has ended, the
same again would be another.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import requests

Json = dict[str, Any]

TIMEOUT_SECONDS = 30.0
RETRIES = 3
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 10.0
REFUSED_UNREAD = 429
UNAVAILABLE = 503
ASK_AGAIN_SECONDS = 0.5
LONGEST_POLL_SECONDS = 25.0


class ApiError(Exception):
    """The service refused: its problem, as it gave it."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.code = str(problem.get("code", "unknown"))
        self.detail = str(problem.get("detail", "The service gave no reason."))
        self.errors: list[dict[str, str]] = list(problem.get("errors", []))
        self.correlation_id = problem.get("correlationId")
        super().__init__("\n  ".join([f"{status} {self.code}: {self.detail}", *self._faults()]))

    def _faults(self) -> list[str]:
        return [f"{fault.get('pointer', '')} {fault.get('detail', '')}" for fault in self.errors]


class Unreachable(Exception):
    """No answer, also not after some retries."""


class Unsendable(ValueError):
    """Nothing was sent: the address, a header or the body cannot be."""


class Client:
    def __init__(
        self,
        base_url: str,
        tenant_id: str | uuid.UUID | None,
        api_key: str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        retries: int = RETRIES,
        session: requests.Session | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._base = f"{base_url.rstrip('/')}/api/v1"
        self._tenant = f"{self._base}/tenants/{tenant_id}"
        self._timeout = timeout
        self._retries = retries
        self._session = session or requests.Session()
        self._sleep = sleep
        self._key = api_key

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()

    # --- service calls ---

    def submit(
        self,
        name: str,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Any = None,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> Json:
        """`options` are members of the submission by their API names: dueAt, delay, tags, retryPolicy, …"""
        spec = {"method": method, "url": url, "headers": dict(headers or {}), "body": body}
        key = idempotency_key or options.pop("idempotencyKey", None) or str(uuid.uuid4())
        return self._json(
            "POST",
            f"{self._tenant}/service-calls",
            {"name": name, "requestSpec": spec, **options},
            headers={"Idempotency-Key": key},
        )

    def submit_batch(self, items: Sequence[Mapping[str, Any]], *, atomic: bool = False) -> Json:
        keyed = [
            {**item, "idempotencyKey": item.get("idempotencyKey") or str(uuid.uuid4())} for item in items
        ]
        return self._json(
            "POST", f"{self._tenant}/service-calls/batch", {"items": keyed, "atomic": atomic}, again=True
        )

    def get(self, service_call_id: str) -> Json:
        return self._json("GET", self._call(service_call_id))

    def wait(self, service_call_id: str, seconds: float = 60.0) -> Json:
        """The call once it has ended, or as it is when the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, min(LONGEST_POLL_SECONDS, deadline - time.monotonic()))
            call = self._json("GET", self._call(service_call_id), params={"wait": f"{left:.3f}s"})
            if call["status"] not in ("Scheduled", "Running") or time.monotonic() >= deadline:
                return call
            # The server may have had no place to wait, and have answered at once.
            self._sleep(max(0.0, min(ASK_AGAIN_SECONDS, deadline - time.monotonic())))

    def list(self, *, limit: int = 50, most: int | None = None, **filters: Any) -> Iterator[Json]:
        """Page after page; `filters` by their API names: status, tag, sort, …; `due_from` is `from`."""
        if "due_from" in filters:
            filters["from"] = filters.pop("due_from")
        return self._pages(f"{self._tenant}/service-calls", {"limit": limit, **filters}, most)

    def change(self, service_call_id: str, **changes: Any) -> Json:
        return self._json("PATCH", self._call(service_call_id), changes, again=True)

    def cancel(self, service_call_id: str) -> Json:
        return self._json("POST", self._call(service_call_id, "cancel"))

    def run_now(self, service_call_id: str) -> Json:
        return self._json("POST", self._call(service_call_id, "run-now"))

    def replay(self, service_call_id: str, *, idempotency_key: str | None = None) -> Json:
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return self._json("POST", self._call(service_call_id, "replay"), headers=headers)

    def delete(self, service_call_id: str) -> None:
        self._send("DELETE", self._call(service_call_id))

    def tag(self, service_call_id: str, tag: str) -> None:
        self._send("PUT", self._call(service_call_id, f"tags/{quote(tag, safe='')}"))

    def untag(self, service_call_id: str, tag: str) -> None:
        self._send("DELETE", self._call(service_call_id, f"tags/{quote(tag, safe='')}"))

    def executions(self, service_call_id: str) -> Iterator[Json]:
        return self._pages(self._call(service_call_id, "executions"), {}, None)

    def events(self, service_call_id: str) -> Iterator[Json]:
        return self._pages(self._call(service_call_id, "events"), {}, None)

    # --- durable timers ---

    def create_timer(
        self, timer_id: str, execute_at: str, callback_url: str, *, namespace: str = "default", **options: Any
    ) -> Json:
        asked = {"namespace": namespace, "id": timer_id, "executeAt": execute_at, "callbackUrl": callback_url}
        return self._timer("create", {**asked, **options})

    def get_timer(self, timer_id: str, *, namespace: str = "default") -> Json:
        return self._timer("get", {"namespace": namespace, "timerId": timer_id}, again=True)

    def update_timer(self, timer_id: str, *, namespace: str = "default", **changes: Any) -> Json:
        return self._timer("update", {"namespace": namespace, "timerId": timer_id, **changes})

    def delete_timer(self, timer_id: str, *, namespace: str = "default") -> None:
        self._send("POST", f"{self._tenant}/timers/delete", {"namespace": namespace, "timerId": timer_id})

    def timers(self, *, most: int | None = None, **filters: Any) -> Iterator[Json]:
        return self._pages(f"{self._tenant}/timers", filters, most)

    def _timer(self, action: str, asked: Json, *, again: bool = False) -> Json:
        return self._json("POST", f"{self._tenant}/timers/{action}", asked, again=again)

    # --- the rest ---

    def stats(self, **query: Any) -> Json:
        return self._json("GET", f"{self._base}/stats", params=query)

    def _call(self, service_call_id: str, action: str = "") -> str:
        return f"{self._tenant}/service-calls/{service_call_id}" + (f"/{action}" if action else "")

    def _pages(self, url: str, query: Mapping[str, Any], most: int | None) -> Iterator[Json]:
        given, cursor = 0, None
        while given != most:
            page = self._json("GET", url, params={**query, **({"cursor": cursor} if cursor else {})})
            for item in page["items"]:
                yield item
                given += 1
                if given == most:
                    return
            if (cursor := page["nextCursor"]) is None:
                return

    def _json(self, method: str, url: str, json: Any = None, **options: Any) -> Json:
        response = self._send(method, url, json, **options)
        try:
            made: Json = response.json()
        except ValueError:
            told = {"detail": f"{url} does not answer in JSON: is the API there?"}
            raise ApiError(response.status_code, told) from None
        return made

    def _send(
        self,
        method: str,
        url: str,
        json: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        again: bool = False,
    ) -> requests.Response:
        headers = dict(headers or {})
        # What may be sent again without doing anything twice.
        again = again or method in ("GET", "PUT", "DELETE") or "Idempotency-Key" in headers
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            try:
                response = self._session.request(
                    method,
                    url,
                    json=json,
                    headers=headers,
                    params=params,
                    timeout=self._timeout,
                    auth=self._with_key,
                    hooks={"response": _refuse_redirect},
                )
            except (ValueError, requests.exceptions.InvalidJSONError) as wrong:
                # Without its cause, whose text may have the key in it.
                raise Unsendable(f"{method} {url}: nothing was sent, {_fault(wrong)}.") from None
            except requests.RequestException as broken:
                if last or not again:
                    raise Unreachable(f"{method} {url}: no answer ({_reason(broken)}).") from broken
                self._sleep(_pause(attempt, None))
                continue
            busy = response.status_code == REFUSED_UNREAD or (again and response.status_code == UNAVAILABLE)
            if busy and not last:
                self._sleep(_pause(attempt, response.headers.get("Retry-After")))
                continue
            return _checked(response)
        raise AssertionError("the last attempt answers or raises")

    def _with_key(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """A mere header would give way to what ~/.netrc has for this host. It is checked as all headers are."""
        request.prepare_headers({**request.headers, "Authorization": f"Bearer {self._key}"})
        return request


def _reason(broken: BaseException) -> str:
    """What it began with: each library on the way has wrapped it in a longer text of its own."""
    while inner := broken.__cause__ or broken.__context__:
        broken = inner
    return getattr(broken, "strerror", None) or str(broken) or type(broken).__name__


def _fault(wrong: Exception) -> str:
    if isinstance(wrong, requests.exceptions.InvalidHeader | UnicodeError):
        return "because a header cannot be: one, or the key, has a line break or a character beyond Latin-1"
    return f"because of this: {wrong}"


def _pause(attempt: int, asked: str | None) -> float:
    if asked is not None and asked.isdecimal():
        return min(float(asked), LONGEST_PAUSE_SECONDS)
    return float(min(FIRST_PAUSE_SECONDS * 2**attempt, LONGEST_PAUSE_SECONDS))


def _refuse_redirect(response: requests.Response, **_: Any) -> None:
    """Followed, a POST would become a GET. It is asked before requests reads the Location, which may be nonsense."""
    if 300 <= response.status_code < 400:
        response.close()
        told = f"{response.url} leads to {response.headers.get('Location') or 'another address'}: is the API there?"
        raise ApiError(response.status_code, {"code": "redirected", "detail": told})


def _checked(response: requests.Response) -> requests.Response:
    if response.ok:
        return response
    try:
        problem = response.json()
    except ValueError:
        problem = {"detail": response.text[:500]}
    raise ApiError(response.status_code, problem if isinstance(problem, dict) else {})


__all__ = ["ApiError", "Client", "Unreachable", "Unsendable"]
