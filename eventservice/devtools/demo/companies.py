"""Three made-up companies, and what they have the service call for them. Their hosts are names that nobody can own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from orchestration.retries import RetryPolicy

SHOP, BANK, CLINIC = "harbor-books", "fjord-bank", "clinic-link"
NAMESPACES = {SHOP: ("carts", 8), CLINIC: ("follow-ups", 4)}
LIMITS: dict[str, dict[str, Any]] = {
    SHOP: {"max_in_flight": 400, "max_pending": 200_000},
    BANK: {"max_in_flight": 1000, "secret_headers": ["X-Bank-Session"]},
    CLINIC: {"max_in_flight": 100, "max_pending": 50_000, "requests_per_minute": 6_000},
}

# Answers with 503 for some hours in the middle of the week.
OUTAGE_HOST = "hooks.parcelly.example"
# Answers nothing since this morning. Names in .invalid never resolve, so what is tried again goes nowhere.
DEAD_HOST = "erp.harbor-books.invalid"

Make = Callable[[Random], Any]


@dataclass(frozen=True, slots=True)
class Job:
    """What one company asks for again and again. Times are in seconds unless they say otherwise."""

    tenant: str
    name: str
    url: str
    body: Make
    answer: Make
    share: float  # of all calls
    method: str = "POST"
    burst: tuple[int, int] = (1, 3)  # how many are submitted at once
    hours: Sequence[int] = ()  # submitted at these hours only; none: all day long, by its rhythm
    wait: tuple[float, float] = (0.0, 0.0)  # from submission until due
    latency_ms: float = 150.0
    spread: float = 0.35
    tags: frozenset[str] = frozenset()
    headers: dict[str, str] = field(default_factory=dict)
    policy: RetryPolicy | None = None
    timeout: float = 30.0
    flaky: float = 0.0  # how many of its attempts meet a passing 503
    refused: float = 0.0  # how many of its calls are refused for good, and how
    refusal: tuple[int, Any] = (422, {"error": "unprocessable"})
    timer: str = ""  # a durable timer: what its ids begin with
    canceled: float = 0.0


def _id(prefix: str, digits: int = 8) -> Make:
    return lambda rng: f"{prefix}{rng.randrange(10 ** (digits - 1), 10**digits)}"


def _one_of(*values: Any) -> Make:
    return lambda rng: rng.choice(values)


def _amount(least: int, most: int) -> Make:
    return lambda rng: {"value": f"{rng.uniform(least, most):.2f}", "currency": "EUR"}


def _object(**members: Any) -> Make:
    return lambda rng: {name: member(rng) if callable(member) else member for name, member in members.items()}


STEADY = RetryPolicy(max_attempts=5, initial_interval=15.0, max_interval=600.0)
PATIENT = RetryPolicy(max_attempts=7, initial_interval=60.0, backoff_multiplier=3.0, max_interval=3600.0)
BEARER = {"Authorization": "Bearer made-up-for-the-demo"}
OPEN_CARTS = _object(
    items=_one_of(1, 2, 3, 5), total=_amount(9, 140), locale=_one_of("de-DE", "en-GB", "nl-NL")
)

JOBS = (
    Job(
        SHOP, "Capture payment", "https://api.payrail.example/v2/captures",
        _object(paymentId=_id("pay_"), amount=_amount(5, 180), final=True),
        _object(id=_id("cap_"), status="captured"),
        share=0.13, burst=(1, 4), latency_ms=240, tags=frozenset({"payments"}), headers=BEARER, policy=STEADY,
        flaky=0.012, refused=0.03, refusal=(402, {"error": "card_declined", "retryable": False}),
    ),
    Job(
        SHOP, "Order webhook", f"https://{OUTAGE_HOST}/v1/orders",
        _object(event="order.paid", order=_id("HB-", 6), parcels=_one_of(1, 1, 1, 2)),
        _object(received=True),
        share=0.20, burst=(2, 6), latency_ms=110, tags=frozenset({"webhooks", "shipping"}), policy=STEADY,
        flaky=0.004,
    ),
    Job(
        SHOP, "Newsletter batch", "https://mail.letterbox.example/v1/messages",
        _object(template="weekly-picks", audience=_id("seg_", 4), size=_one_of(250, 500)),
        _object(queued=_one_of(250, 500)),
        share=0.05, burst=(25, 40), hours=(7,), wait=(1800, 1800), latency_ms=420, tags=frozenset({"marketing"}),
        policy=STEADY, flaky=0.02, canceled=0.02,
    ),
    Job(
        SHOP, "Cart reminder", "https://shop.harbor-books.example/timers/cart",
        OPEN_CARTS, _object(ok=True),
        share=0.07, burst=(2, 6), wait=(5400, 5400), latency_ms=90, timer="cart-",
    ),
    Job(
        SHOP, "Sync stock", f"https://{DEAD_HOST}/api/stock",
        _object(warehouse=_one_of("HAM-1", "RTM-2"), changed=_one_of(3, 12, 40, 118)),
        _object(accepted=True, queue=_one_of(0, 1, 2)),
        share=0.065, method="PUT", burst=(2, 4), latency_ms=380, spread=0.5, tags=frozenset({"erp"}), timeout=20,
        policy=RetryPolicy(max_attempts=9, initial_interval=300.0, max_interval=1800.0),
    ),
    Job(
        SHOP, "Look up price", f"https://{DEAD_HOST}/api/prices",
        _object(isbn=_id("978", 10)), _object(price=_amount(6, 60), stock=_one_of(0, 4, 31)),
        share=0.015, burst=(1, 2), latency_ms=120, tags=frozenset({"erp"}), timeout=10,
    ),
    Job(
        BANK, "Fraud score", "https://scoring.fjord-bank.example/v1/score",
        _object(transaction=_id("txn_", 10), amount=_amount(1, 900), merchant=_id("m_", 5)),
        _object(score=lambda rng: round(rng.betavariate(1, 9), 3), model="2026-07"),
        share=0.17, burst=(3, 8), latency_ms=34, spread=0.3, tags=frozenset({"risk"}), headers=BEARER, timeout=5,
        flaky=0.003,
    ),
    Job(
        BANK, "Payment reminder", "https://notify.fjord-bank.example/v2/sms",
        _object(customer=_id("c_", 7), invoice=_id("INV-", 7), due=_one_of("in 3 days", "tomorrow", "today")),
        _object(messageId=_id("sms_"), parts=1),
        share=0.10, burst=(30, 45), hours=(9, 16), wait=(3600, 3600), latency_ms=180,
        tags=frozenset({"reminders"}), policy=STEADY, flaky=0.015, refused=0.02,
        refusal=(422, {"error": "number_not_reachable"}), canceled=0.03,
    ),
    Job(
        BANK, "Settlement report", "https://reports.fjord-bank.example/v1/settlements",
        _object(book=_one_of("cards", "transfers", "fees"), format="camt.053"),
        _object(report=_id("rep_"), rows=_one_of(812, 4310, 18_077), checksum=_id("", 10)),
        share=0.012, burst=(3, 6), hours=(2,), latency_ms=14_000, spread=0.45, tags=frozenset({"reports"}),
        timeout=45, policy=STEADY,
    ),
    Job(
        BANK, "Merchant webhook", "https://hooks.merchant-hub.example/fjord",
        _object(event=_one_of("payout.sent", "dispute.opened"), payout=_id("po_"), amount=_amount(40, 9000)),
        _object(received=True),
        share=0.09, burst=(1, 5), latency_ms=130, spread=0.6, tags=frozenset({"webhooks"}), policy=PATIENT,
        headers={"X-Bank-Session": "made-up-for-the-demo"}, flaky=0.02,
    ),
    Job(
        CLINIC, "Appointment reminder", "https://sms.quickping.example/messages",
        _object(to="+49 30 55 0100", text="Your appointment is tomorrow at 10:20.", appointment=_id("apt-", 6)),
        _object(id=_id("m-"), status="accepted"),
        share=0.06, burst=(20, 35), hours=(8, 17), wait=(900, 900), latency_ms=160, tags=frozenset({"reminders"}),
        policy=STEADY, flaky=0.05, canceled=0.04,
    ),
    Job(
        CLINIC, "Lab result webhook", "https://intake.labnet.example/results",
        _object(result=_id("lab-", 7), panel=_one_of("blood", "lipids", "thyroid"), urgent=_one_of(False, False, True)),
        _object(stored=True, version=_one_of(1, 1, 2)),
        share=0.05, burst=(1, 4), latency_ms=210, tags=frozenset({"lab"}), headers=BEARER, policy=PATIENT,
        flaky=0.01,
    ),
    Job(
        CLINIC, "Insurance claim", "https://claims.carefund.example/v3/claims",
        _object(claim=_id("CL-", 7), code=_one_of("03230", "01732", "13250"), amount=_amount(12, 480)),
        _object(claim=_id("CF-"), state="in review"),
        share=0.025, burst=(1, 3), latency_ms=1150, spread=0.5, tags=frozenset({"billing"}), policy=STEADY,
        refused=0.09, refusal=(409, {"error": "duplicate_claim"}),
    ),
    Job(
        CLINIC, "Follow-up", "https://care.clinic-link.example/timers/follow-up",
        _object(patient=_id("p-", 6), step=_one_of("call back", "send form", "book visit")), _object(ok=True),
        share=0.02, burst=(1, 3), wait=(7200, 86_400), latency_ms=140, timer="follow-up-",
    ),
)  # fmt: skip
