"""An event as receivers see it: CloudEvents 1.0 in JSON."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from eventservice.db.bulk import to_json

# An aggregate: its tenant and its own id.
Aggregate = tuple[UUID, UUID]


class Envelope(NamedTuple):
    # Its place in the outbox. Receivers do not see these three.
    id: int
    partition: int
    attempts: int

    event_id: UUID
    tenant_id: UUID
    aggregate_type: str
    aggregate_id: UUID
    sequence: int
    type: str
    time: datetime
    correlation_id: UUID
    causation_id: UUID | None
    # JSON as it is stored. It is published unchanged, without being parsed.
    data: str

    @property
    def aggregate(self) -> Aggregate:
        return self.tenant_id, self.aggregate_id

    @property
    def source(self) -> str:
        """The CloudEvents source. With it, `event_id` is unique: receivers recognize repeats by both."""
        return f"/tenants/{self.tenant_id}"

    def to_json(self) -> str:
        return f'{to_json(self._build_attributes())[:-1]},"data":{self.data}}}'

    def _build_attributes(self) -> dict[str, str]:
        tenant = str(self.tenant_id)
        attributes = {
            "specversion": "1.0",
            "id": str(self.event_id),
            "source": self.source,
            "type": self.type,
            "subject": str(self.aggregate_id),
            "time": self.time.isoformat(),
            "datacontenttype": "application/json",
            "tenantid": tenant,
            "aggregatetype": self.aggregate_type,
            "correlationid": str(self.correlation_id),
            # Of fixed width: the extension requires a string that sorts.
            "sequence": f"{self.sequence:010d}",
        }
        if self.causation_id is not None:
            attributes["causationid"] = str(self.causation_id)
        return attributes
