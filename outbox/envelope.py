"""An event as its receivers see it: CloudEvents 1.0 in JSON."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from eventservice.db.bulk import to_json


class Envelope(NamedTuple):
    # Where the event stands in the outbox; receivers do not see these three.
    id: int
    partition: int
    attempts: int

    event_id: UUID
    tenant_id: UUID
    aggregate_id: UUID
    sequence: int
    type: str
    time: datetime
    correlation_id: UUID
    causation_id: UUID | None
    # JSON as it is stored: it goes out as it came in, without a detour through Python objects.
    data: str

    @property
    def aggregate(self) -> tuple[UUID, UUID]:
        return self.tenant_id, self.aggregate_id

    def to_json(self) -> str:
        return f'{to_json(self.attributes())[:-1]},"data":{self.data}}}'

    def attributes(self) -> dict[str, str]:
        """All but `data`. `sequence` is of a fixed width: the extension wants a text that sorts."""
        tenant = str(self.tenant_id)
        attributes = {
            "specversion": "1.0",
            "id": str(self.event_id),
            "source": f"/tenants/{tenant}",
            "type": self.type,
            "subject": str(self.aggregate_id),
            "time": self.time.isoformat(),
            "datacontenttype": "application/json",
            "tenantid": tenant,
            "correlationid": str(self.correlation_id),
            "sequence": f"{self.sequence:010d}",
        }
        if self.causation_id is not None:
            attributes["causationid"] = str(self.causation_id)
        return attributes
