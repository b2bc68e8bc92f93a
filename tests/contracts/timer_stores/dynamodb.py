"""The timer store on DynamoDB, for the contract suite: each run has a table of its own."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

from boto3.session import Session

from tests.contracts.timer_stores.base import StoreUnderTest
from tests.services import require_library, require_service
from timers.stores.dynamodb.items import MAX_TIMER_BYTES
from timers.stores.store_spec import StoreSpec

# DynamoDB Local accepts any credentials.
REGION, ACCESS_KEY, SECRET_KEY = "us-east-1", "test", "s3cret"
MAX_BATCH_ITEMS = 25


class DynamoDbStoreUnderTest(StoreUnderTest):
    too_many_bytes = MAX_TIMER_BYTES + 1

    def __init__(self) -> None:
        require_library("boto3")
        self.endpoint = require_service("dynamodb").geturl()
        self.table_name = f"timers_{uuid.uuid4().hex}"
        session = Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY, region_name=REGION)
        self.client: Any = session.client("dynamodb", endpoint_url=self.endpoint)
        super().__init__(self.build_spec(self.endpoint))

    def build_spec(self, endpoint: str) -> StoreSpec:
        """Return the item of `TIMER_STORES` for this table by another way to the server."""
        url = f"dynamodb://{ACCESS_KEY}:{SECRET_KEY}@{REGION}/{self.table_name}?endpoint={endpoint}"
        return StoreSpec.parse(f"dynamodb={url}")

    def clear(self) -> None:
        key = "shard_id, sortKey"
        pages = self.client.get_paginator("scan").paginate(
            TableName=self.table_name, ProjectionExpression=key
        )
        deletions = [{"DeleteRequest": {"Key": item}} for page in pages for item in page["Items"]]
        for start in range(0, len(deletions), MAX_BATCH_ITEMS):
            batch = deletions[start : start + MAX_BATCH_ITEMS]
            answer = self.client.batch_write_item(RequestItems={self.table_name: batch})
            assert not answer["UnprocessedItems"]

    def close(self) -> None:
        with suppress(self.client.exceptions.ResourceNotFoundException):
            self.client.delete_table(TableName=self.table_name)
        self.client.close()
