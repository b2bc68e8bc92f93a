"""A client of the REST API.

    from eventservice.client import Client

    client = Client("http://127.0.0.1:8000", tenant_id, api_key)
    call = client.submit("greet", "POST", "https://example.com/hello", body={"name": "Ada"}, delay="90s")
    call = client.wait(call["serviceCallId"])

Every submission, batch and replay carries an idempotency key, either the caller's or a generated one, so it can be retried
when a connection breaks or when the service does not know whether it was stored (503). Other requests of which a repeat
changes nothing more are retried, too: reads, `change`, `delete`, `tag`, `untag`, `delete_timer` and `declare_namespace`.
(A deletion of which only the response was lost then raises ApiError with the status 404: it is gone.) All other requests
(`cancel`, `run_now`, `create_timer`, `update_timer`) are retried only if they were rejected before they were processed
(429): creating a timer again after it has ended would create a second one.

Before a retry, the client waits for as long as the response asks for with Retry-After. If that is longer than
MAX_RETRY_AFTER_SECONDS, the error is raised at once, with the seconds as its `retry_after`. Nothing is retried that a limit
on what is stored has rejected (`pending_ceiling`, `storage_limit`): calls have to end, or to be deleted, before there is room.

The service's certificate is verified with the authorities that the engine trusts: those of the file SSL_CERT_FILE, or else of
the system, or else of certifi. REQUESTS_CA_BUNDLE and CURL_CA_BUNDLE have precedence, as always with requests.
"""

from __future__ import annotations

import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack
from urllib.parse import quote

import requests

Json = dict[str, Any]  # a document of the API, which describes its members
Parameter = str | int | float | Sequence[str] | None  # of a query


class RequestOptions(TypedDict, total=False):
    headers: Mapping[str, str]
    params: Mapping[str, Parameter]
    retryable: bool


TIMEOUT_SECONDS = 30.0
MAX_RETRIES = 3
INITIAL_BACKOFF_SECONDS = 0.2
MAX_BACKOFF_SECONDS = 10.0
# The rate limits refill within a minute.
MAX_RETRY_AFTER_SECONDS = 60.0
TOO_MANY_REQUESTS = 429
# The codes of a 429 that a retry within seconds would receive again.
LASTING_LIMITS = {"pending_ceiling", "storage_limit"}
SERVICE_UNAVAILABLE = 503
POLL_INTERVAL_SECONDS = 0.5
MAX_LONG_POLL_SECONDS = 25.0
MAX_PAGE_SIZE = 200
MAX_TRACE_PAGE_SIZE = 50


class ApiError(Exception):
    """The service refused the request. The attributes are those of its problem document."""

    def __init__(self, status: int, problem: Json, retry_after: float | None = None) -> None:
        self.status = status
        # After how many seconds to try again, if the service has said so.
        self.retry_after = retry_after
        self.code = str(problem.get("code", "unknown"))
        self.detail = str(problem.get("detail", "The service gave no reason."))
        self.errors: list[dict[str, str]] = list(problem.get("errors", []))
        self.correlation_id = problem.get("correlationId")
        # Of idempotency_conflict: the call that the key belongs to, if the key of the client may read it.
        self.existing_call_id = problem.get("existingServiceCallId")
        super().__init__("\n  ".join([f"{status} {self.code}: {self.detail}", *self._field_errors()]))

    def _field_errors(self) -> list[str]:
        return [f"{error.get('pointer', '')} {error.get('detail', '')}" for error in self.errors]


class Unreachable(Exception):
    """The service did not respond, even after the retries."""


class Unsendable(ValueError):
    """The request was not sent, because its URL, a header or the body is invalid."""


class Client:
    def __init__(
        self,
        base_url: str,
        tenant_id: str | uuid.UUID | None,
        api_key: str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        retries: int = MAX_RETRIES,
        session: requests.Session | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._base = f"{base_url.rstrip('/')}/api/v1"
        self._tenant = f"{self._base}/tenants/{tenant_id}"
        self._timeout = timeout
        self._retries = retries
        self._session = session or _build_session()
        self._sleep = sleep
        self._key = api_key
        # Whether the last response is that of an earlier request with the same idempotency key, which was not a retry.
        self.is_repeat = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()

    def select_tenant(self, name: str) -> None:
        """Use the tenant with this name from now on. Raise ApiError if the key cannot act in such a tenant."""
        for tenant in self._pages(f"{self._base}/tenants", {"limit": MAX_PAGE_SIZE}, None):
            if tenant["name"] == name:
                self._tenant = f"{self._base}/tenants/{tenant['tenantId']}"
                return
        raise ApiError(404, {"code": "not_found", "detail": f"There is no tenant {name!r} for this key."})

    # --- service calls ---

    def submit(
        self,
        name: str,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: object = None,
        idempotency_key: str | None = None,
        **options: object,
    ) -> Json:
        """Submit a call. `options` are further members of the submission by their API names: dueAt, delay, tags, …"""
        spec = {"method": method, "url": url, "headers": dict(headers or {}), "body": body}
        key = options.pop("idempotencyKey", None) if idempotency_key is None else idempotency_key
        return self._json(
            "POST",
            f"{self._tenant}/service-calls",
            {"name": name, "requestSpec": spec, **options},
            headers=_build_key_header(key),
        )

    def submit_batch(self, items: Sequence[Mapping[str, object]], *, atomic: bool = False) -> Json:
        keyed = [{**item, "idempotencyKey": _get_key(item.get("idempotencyKey"))} for item in items]
        return self._json(
            "POST", f"{self._tenant}/service-calls/batch", {"items": keyed, "atomic": atomic}, retryable=True
        )

    def get(self, service_call_id: str) -> Json:
        return self._json("GET", self._call(service_call_id))

    def wait(self, service_call_id: str, seconds: float = 60.0) -> Json:
        """Wait until the call has finished, for at most `seconds`, and return it as it is then. Retries of a request that
        was rejected can take longer."""
        deadline = time.monotonic() + seconds
        url = self._call(service_call_id)
        while True:
            left = max(0.0, min(MAX_LONG_POLL_SECONDS, deadline - time.monotonic()))
            response = self._send("GET", url, params={"wait": f"{left:.3f}s"})
            call = _read_document(response)
            if call["status"] not in ("Scheduled", "Running") or time.monotonic() >= deadline:
                return call
            # With Retry-After, the server has answered immediately, because too many requests were waiting already.
            pause = _read_retry_after(response) or POLL_INTERVAL_SECONDS
            self._sleep(max(0.0, min(pause, deadline - time.monotonic())))

    def list(self, *, limit: int = 50, max_items: int | None = None, **filters: Parameter) -> Iterator[Json]:
        """Iterate over calls, page by page. `filters` have their API names (status, tag, sort, …); use `due_from` for `from`."""
        return self._pages(f"{self._tenant}/service-calls", {"limit": limit, **_rename(filters)}, max_items)

    def change(self, service_call_id: str, **changes: object) -> Json:
        return self._json("PATCH", self._call(service_call_id), changes, retryable=True)

    def cancel(self, service_call_id: str) -> Json:
        return self._json("POST", self._call(service_call_id, "cancel"))

    def run_now(self, service_call_id: str) -> Json:
        return self._json("POST", self._call(service_call_id, "run-now"))

    def replay(self, service_call_id: str, *, idempotency_key: str | None = None) -> Json:
        headers = _build_key_header(idempotency_key)
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

    def trace(self, correlation_id: str, *, max_items: int | None = None) -> Json:
        """Return the trace of a correlation id with its calls, or the first `max_items` of them, from all pages."""
        url, items = f"{self._tenant}/traces/{correlation_id}", list[Json]()
        trace = page = self._json(
            "GET", url, params={"limit": min(max_items or MAX_TRACE_PAGE_SIZE, MAX_TRACE_PAGE_SIZE)}
        )
        while True:
            items += page["items"]
            cursor = page["nextCursor"]
            if cursor is None or (max_items is not None and len(items) >= max_items):
                return {**trace, "items": items[:max_items], "nextCursor": cursor}
            page = self._json("GET", url, params={"limit": MAX_TRACE_PAGE_SIZE, "cursor": cursor})

    # --- durable timers ---

    def create_timer(
        self,
        timer_id: str,
        execute_at: str,
        callback_url: str,
        *,
        namespace: str = "default",
        **options: object,
    ) -> Json:
        document = {
            "namespace": namespace,
            "id": timer_id,
            "executeAt": execute_at,
            "callbackUrl": callback_url,
        }
        return self._timer("create", {**document, **options})

    def get_timer(self, timer_id: str, *, namespace: str = "default") -> Json:
        return self._timer("get", {"namespace": namespace, "timerId": timer_id}, retryable=True)

    def update_timer(self, timer_id: str, *, namespace: str = "default", **changes: object) -> Json:
        return self._timer("update", {"namespace": namespace, "timerId": timer_id, **changes})

    def delete_timer(self, timer_id: str, *, namespace: str = "default") -> None:
        document = {"namespace": namespace, "timerId": timer_id}
        self._send("POST", f"{self._tenant}/timers/delete", document, retryable=True)

    def timers(self, *, max_items: int | None = None, **filters: Parameter) -> Iterator[Json]:
        """Iterate over timers. `filters` are as for `list`."""
        return self._pages(f"{self._tenant}/timers", _rename(filters), max_items)

    def _timer(self, action: str, document: Json, *, retryable: bool = False) -> Json:
        return self._json("POST", f"{self._tenant}/timers/{action}", document, retryable=retryable)

    # --- namespaces ---

    def namespaces(self) -> Iterator[Json]:
        return self._pages(f"{self._tenant}/namespaces", {}, None)

    def declare_namespace(
        self, name: str, *, size: str | None = None, num_shards: int | None = None, store: str | None = None
    ) -> Json:
        """Create a namespace, or return the one of that name. `size` is small, medium, large or xlarge.

        `store` is the name of a timer store. Raise ApiError if the namespace exists with another number of shards or in
        another store, or if both a size and a number are given.
        """
        document = {"name": name, "size": size, "numShards": num_shards}
        if store is not None:  # earlier releases do not know it
            document["store"] = store
        return self._json("POST", f"{self._tenant}/namespaces", document, retryable=True)

    # --- operations ---

    def stats(self, **query: Parameter) -> Json:
        return self._json("GET", f"{self._base}/stats", params=query)

    def _call(self, service_call_id: str, action: str = "") -> str:
        return f"{self._tenant}/service-calls/{service_call_id}" + (f"/{action}" if action else "")

    def _pages(self, url: str, query: Mapping[str, Parameter], max_items: int | None) -> Iterator[Json]:
        query = {name: _to_query(value) for name, value in query.items()}
        count, cursor = 0, None
        while count != max_items:
            page = self._json("GET", url, params={**query, **({"cursor": cursor} if cursor else {})})
            for item in page["items"]:
                yield item
                count += 1
                if count == max_items:
                    return
            if (cursor := page["nextCursor"]) is None:
                return

    def _json(self, method: str, url: str, json: object = None, **options: Unpack[RequestOptions]) -> Json:
        return _read_document(self._send(method, url, json, **options))

    def _send(
        self,
        method: str,
        url: str,
        json: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Parameter] | None = None,
        retryable: bool = False,
    ) -> requests.Response:
        headers = dict(headers or {})
        retryable = retryable or method in ("GET", "PUT", "DELETE") or "Idempotency-Key" in headers
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
                    auth=self._add_key,
                    hooks={"response": _refuse_redirect},
                )
            except (ValueError, requests.exceptions.InvalidJSONError) as error:
                # The cause is omitted, because its text may contain the key.
                raise Unsendable(
                    f"{method} {url} was not sent: {_describe_invalid_request(error)}."
                ) from None
            except requests.RequestException as error:
                if last or not retryable:
                    raise Unreachable(f"{method} {url}: no response ({_describe_cause(error)}).") from error
                self._sleep(_backoff_seconds(attempt))
                continue
            busy = (response.status_code == TOO_MANY_REQUESTS and not _is_at_lasting_limit(response)) or (
                retryable and response.status_code == SERVICE_UNAVAILABLE
            )
            pause = _read_retry_after(response)
            if busy and not last and (pause is None or pause <= MAX_RETRY_AFTER_SECONDS):
                self._sleep(_backoff_seconds(attempt) if pause is None else pause)
                continue
            self.is_repeat = attempt == 0 and response.headers.get("Idempotent-Replayed") == "true"
            return _raise_for_problem(response)
        raise AssertionError("the last attempt returns or raises")

    def _add_key(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Set the key as requests' `auth`, because credentials in ~/.netrc would replace an ordinary header."""
        request.prepare_headers({**request.headers, "Authorization": f"Bearer {self._key}"})
        return request


def _rename(filters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """Return filters by their API names. `from` is no name of a parameter in Python."""
    return {"from" if name == "due_from" else name: value for name, value in filters.items()}


def _to_query(value: Parameter) -> Parameter:
    """Return a value as the API reads it. requests would leave out an empty list, and everything would be listed."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is not None and not isinstance(value, int | float) and not value else value


def _get_key(given: object) -> str:
    """Return the given idempotency key, or a new one if there is none. The service refuses one that is empty."""
    return str(uuid.uuid4() if given is None else given)


def _build_key_header(given: object) -> dict[str, str]:
    key = _get_key(given)
    if not all("!" <= character <= "~" for character in key):
        raise Unsendable(
            f"The idempotency key {key!r} was not sent: it must be 1 to 255 visible ASCII characters."
        )
    return {"Idempotency-Key": key}


def _build_session() -> requests.Session:
    session = requests.Session()
    # By itself, requests trusts the authorities of certifi only.
    session.verify = ssl.get_default_verify_paths().cafile or True
    return session


def _describe_cause(error: BaseException) -> str:
    """Describe the innermost cause. The libraries in between wrap it in longer texts of their own."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        text += "; if your own authority has signed the certificate, set SSL_CERT_FILE or REQUESTS_CA_BUNDLE to its file"
    return text


def _describe_invalid_request(error: Exception) -> str:
    if isinstance(error, requests.exceptions.InvalidHeader | UnicodeError):
        return "a header or the API key contains a line break or a character outside Latin-1"
    return str(error)


def _backoff_seconds(attempt: int) -> float:
    return float(min(INITIAL_BACKOFF_SECONDS * 2**attempt, MAX_BACKOFF_SECONDS))


def _read_retry_after(response: requests.Response) -> float | None:
    """Return the seconds after which to try again, or None if the response does not say so."""
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else None


def _read_document(response: requests.Response) -> Json:
    try:
        document: Json = response.json()
    except ValueError:
        problem = {"detail": f"{response.url} did not return JSON. Check the base URL of the API."}
        raise ApiError(response.status_code, problem) from None
    return document


def _refuse_redirect(response: requests.Response, **_: object) -> None:
    """Reject redirects before requests reads the Location header. Following one would turn a POST into a GET."""
    if 300 <= response.status_code < 400:
        response.close()
        location = response.headers.get("Location") or "another address"
        detail = f"{response.url} redirects to {location}. Check the base URL of the API."
        raise ApiError(response.status_code, {"code": "redirected", "detail": detail})


def _is_at_lasting_limit(response: requests.Response) -> bool:
    try:
        problem = response.json()
    except ValueError:
        return False
    return isinstance(problem, dict) and problem.get("code") in LASTING_LIMITS


def _raise_for_problem(response: requests.Response) -> requests.Response:
    if response.ok:
        return response
    try:
        problem = response.json()
    except ValueError:
        problem = {"detail": response.text[:500]}
    raise ApiError(
        response.status_code, problem if isinstance(problem, dict) else {}, _read_retry_after(response)
    )


__all__ = ["ApiError", "Client", "Unreachable", "Unsendable"]
