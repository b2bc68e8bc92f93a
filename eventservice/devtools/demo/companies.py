"""Three sample companies and their calls. Their hosts are in domains that are reserved for examples."""

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

# Responds with 503 for some hours in the middle of the week.
OUTAGE_HOST = "hooks.parcelly.example"
# Has been down since this morning. Names in .invalid never resolve, so retries reach nobody.
DEAD_HOST = "erp.harbor-books.invalid"

RandomValue = Callable[[Random], Any]


@dataclass(frozen=True, slots=True)
class Job:
    """A recurring kind of call. Times are in seconds unless the name says otherwise."""

    tenant: str
    name: str
    url: str
    body: RandomValue
    answer: RandomValue
    share: float  # share of all calls
    method: str = "POST"
    burst: tuple[int, int] = (1, 3)  # number of calls submitted together
    hours: Sequence[int] = ()  # hours of submission; empty: all day
    wait: tuple[float, float] = (0.0, 0.0)  # delay from submission until due
    latency_ms: float = 150.0
    spread: float = 0.35
    tags: frozenset[str] = frozenset()
    headers: dict[str, str] = field(default_factory=dict)
    policy: RetryPolicy | None = None
    timeout: float = 30.0
    flaky: float = 0.0  # share of attempts that fail with a temporary 503
    refused: float = 0.0  # share of calls that are rejected permanently
    refusal: tuple[int, Any] = (422, {"error": "unprocessable"})
    timer: str = ""  # for durable timers: the prefix of their ids
    canceled: float = 0.0


def _random_id(prefix: str, digits: int = 8) -> RandomValue:
    return lambda rng: f"{prefix}{rng.randrange(10 ** (digits - 1), 10**digits)}"


def _random_choice(*values: Any) -> RandomValue:
    return lambda rng: rng.choice(values)


def _random_amount(minimum: int, maximum: int) -> RandomValue:
    return lambda rng: {"value": f"{rng.uniform(minimum, maximum):.2f}", "currency": "EUR"}


def _random_object(**members: Any) -> RandomValue:
    return lambda rng: {name: member(rng) if callable(member) else member for name, member in members.items()}


STEADY_POLICY = RetryPolicy(max_attempts=5, initial_interval=15.0, max_interval=600.0)
PATIENT_POLICY = RetryPolicy(
    max_attempts=7, initial_interval=60.0, backoff_multiplier=3.0, max_interval=3600.0
)
BEARER_HEADERS = {"Authorization": "Bearer made-up-for-the-demo"}
OPEN_CARTS = _random_object(
    items=_random_choice(1, 2, 3, 5),
    total=_random_amount(9, 140),
    locale=_random_choice("de-DE", "en-GB", "nl-NL"),
)

JOBS = (
    Job(
        SHOP, "Capture payment", "https://api.payrail.example/v2/captures",
        _random_object(paymentId=_random_id("pay_"), amount=_random_amount(5, 180), final=True),
        _random_object(id=_random_id("cap_"), status="captured"),
        share=0.13, burst=(1, 4), latency_ms=240, tags=frozenset({"payments"}), headers=BEARER_HEADERS, policy=STEADY_POLICY,
        flaky=0.012, refused=0.03, refusal=(402, {"error": "card_declined", "retryable": False}),
    ),
    Job(
        SHOP, "Order webhook", f"https://{OUTAGE_HOST}/v1/orders",
        _random_object(event="order.paid", order=_random_id("HB-", 6), parcels=_random_choice(1, 1, 1, 2)),
        _random_object(received=True),
        share=0.20, burst=(2, 6), latency_ms=110, tags=frozenset({"webhooks", "shipping"}), policy=STEADY_POLICY,
        flaky=0.004,
    ),
    Job(
        SHOP, "Newsletter batch", "https://mail.letterbox.example/v1/messages",
        _random_object(template="weekly-picks", audience=_random_id("seg_", 4), size=_random_choice(250, 500)),
        _random_object(queued=_random_choice(250, 500)),
        share=0.05, burst=(25, 40), hours=(7,), wait=(1800, 1800), latency_ms=420, tags=frozenset({"marketing"}),
        policy=STEADY_POLICY, flaky=0.02, canceled=0.02,
    ),
    Job(
        SHOP, "Cart reminder", "https://shop.harbor-books.example/timers/cart",
        OPEN_CARTS, _random_object(ok=True),
        share=0.07, burst=(2, 6), wait=(5400, 5400), latency_ms=90, timer="cart-",
    ),
    Job(
        SHOP, "Sync stock", f"https://{DEAD_HOST}/api/stock",
        _random_object(warehouse=_random_choice("HAM-1", "RTM-2"), changed=_random_choice(3, 12, 40, 118)),
        _random_object(accepted=True, queue=_random_choice(0, 1, 2)),
        share=0.065, method="PUT", burst=(2, 4), latency_ms=380, spread=0.5, tags=frozenset({"erp"}), timeout=20,
        policy=RetryPolicy(max_attempts=9, initial_interval=300.0, max_interval=1800.0),
    ),
    Job(
        SHOP, "Look up price", f"https://{DEAD_HOST}/api/prices",
        _random_object(isbn=_random_id("978", 10)), _random_object(price=_random_amount(6, 60), stock=_random_choice(0, 4, 31)),
        share=0.015, burst=(1, 2), latency_ms=120, tags=frozenset({"erp"}), timeout=10,
    ),
    Job(
        BANK, "Fraud score", "https://scoring.fjord-bank.example/v1/score",
        _random_object(transaction=_random_id("txn_", 10), amount=_random_amount(1, 900), merchant=_random_id("m_", 5)),
        _random_object(score=lambda rng: round(rng.betavariate(1, 9), 3), model="2026-07"),
        share=0.17, burst=(3, 8), latency_ms=34, spread=0.3, tags=frozenset({"risk"}), headers=BEARER_HEADERS, timeout=5,
        flaky=0.003,
    ),
    Job(
        BANK, "Payment reminder", "https://notify.fjord-bank.example/v2/sms",
        _random_object(customer=_random_id("c_", 7), invoice=_random_id("INV-", 7), due=_random_choice("in 3 days", "tomorrow", "today")),
        _random_object(messageId=_random_id("sms_"), parts=1),
        share=0.10, burst=(30, 45), hours=(9, 16), wait=(3600, 3600), latency_ms=180,
        tags=frozenset({"reminders"}), policy=STEADY_POLICY, flaky=0.015, refused=0.02,
        refusal=(422, {"error": "number_not_reachable"}), canceled=0.03,
    ),
    Job(
        BANK, "Settlement report", "https://reports.fjord-bank.example/v1/settlements",
        _random_object(book=_random_choice("cards", "transfers", "fees"), format="camt.053"),
        _random_object(report=_random_id("rep_"), rows=_random_choice(812, 4310, 18_077), checksum=_random_id("", 10)),
        share=0.012, burst=(3, 6), hours=(2,), latency_ms=14_000, spread=0.45, tags=frozenset({"reports"}),
        timeout=45, policy=STEADY_POLICY,
    ),
    Job(
        BANK, "Merchant webhook", "https://hooks.merchant-hub.example/fjord",
        _random_object(event=_random_choice("payout.sent", "dispute.opened"), payout=_random_id("po_"), amount=_random_amount(40, 9000)),
        _random_object(received=True),
        share=0.09, burst=(1, 5), latency_ms=130, spread=0.6, tags=frozenset({"webhooks"}), policy=PATIENT_POLICY,
        headers={"X-Bank-Session": "made-up-for-the-demo"}, flaky=0.02,
    ),
    Job(
        CLINIC, "Appointment reminder", "https://sms.quickping.example/messages",
        _random_object(to="+49 30 55 0100", text="Your appointment is tomorrow at 10:20.", appointment=_random_id("apt-", 6)),
        _random_object(id=_random_id("m-"), status="accepted"),
        share=0.06, burst=(20, 35), hours=(8, 17), wait=(900, 900), latency_ms=160, tags=frozenset({"reminders"}),
        policy=STEADY_POLICY, flaky=0.05, canceled=0.04,
    ),
    Job(
        CLINIC, "Lab result webhook", "https://intake.labnet.example/results",
        _random_object(result=_random_id("lab-", 7), panel=_random_choice("blood", "lipids", "thyroid"), urgent=_random_choice(False, False, True)),
        _random_object(stored=True, version=_random_choice(1, 1, 2)),
        share=0.05, burst=(1, 4), latency_ms=210, tags=frozenset({"lab"}), headers=BEARER_HEADERS, policy=PATIENT_POLICY,
        flaky=0.01,
    ),
    Job(
        CLINIC, "Insurance claim", "https://claims.carefund.example/v3/claims",
        _random_object(claim=_random_id("CL-", 7), code=_random_choice("03230", "01732", "13250"), amount=_random_amount(12, 480)),
        _random_object(claim=_random_id("CF-"), state="in review"),
        share=0.025, burst=(1, 3), latency_ms=1150, spread=0.5, tags=frozenset({"billing"}), policy=STEADY_POLICY,
        refused=0.09, refusal=(409, {"error": "duplicate_claim"}),
    ),
    Job(
        CLINIC, "Follow-up", "https://care.clinic-link.example/timers/follow-up",
        _random_object(patient=_random_id("p-", 6), step=_random_choice("call back", "send form", "book visit")), _random_object(ok=True),
        share=0.02, burst=(1, 3), wait=(7200, 86_400), latency_ms=140, timer="follow-up-",
    ),
)  # fmt: skip
