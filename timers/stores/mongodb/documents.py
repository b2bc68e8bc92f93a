"""The documents of a timer store on MongoDB."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from timers.stores.port import StoredTimer
from timers.stores.rows import build_timer_row, read_timer_row

Document = dict[str, Any]


def build_timer_document(timer: StoredTimer) -> Document:
    # As text: not every JSON value is valid in BSON, for example keys that begin with $.
    return {**build_timer_row(timer), "timer_payload": json.dumps(timer.payload, ensure_ascii=False)}


def read_timer_document(document: Mapping[str, Any]) -> StoredTimer:
    return read_timer_row({**document, "timer_payload": json.loads(document["timer_payload"])})
