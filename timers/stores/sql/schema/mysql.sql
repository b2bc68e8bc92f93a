-- The table of a timer store on MySQL. `manage.py timer_store migrate` executes this statement.

CREATE TABLE IF NOT EXISTS timers (
    shard_id INT NOT NULL,
    row_type SMALLINT NOT NULL,                     -- 1 shard, 2 timer, 4 process, 5 namespace
    timer_execute_at DATETIME(3) NOT NULL,          -- in UTC, as all times
    timer_uuid CHAR(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,

    timer_id VARCHAR(255) NOT NULL,
    timer_namespace VARCHAR(255) NOT NULL,
    timer_callback_url VARCHAR(2048),
    timer_payload JSON,
    timer_retry_policy JSON,
    timer_callback_timeout_seconds DOUBLE DEFAULT 30,
    timer_created_at DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    timer_attempts INT NOT NULL DEFAULT 0,

    shard_version BIGINT,
    shard_owner_id VARCHAR(255),
    shard_claimed_at DATETIME(3),
    shard_metadata JSON,

    timer_revision CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,
    timer_takes INT NOT NULL DEFAULT 0,
    timer_taken_until DATETIME(3) NOT NULL DEFAULT '1970-01-01 00:00:00.000',
    timer_taken_by VARCHAR(255),
    timer_take_id CHAR(36) CHARACTER SET ascii COLLATE ascii_bin,
    timer_requested_at DATETIME(3),
    timer_first_started_at DATETIME(3),
    timer_interruptions INT NOT NULL DEFAULT 0,
    timer_next_seq BIGINT NOT NULL DEFAULT 1,
    timer_format INT NOT NULL DEFAULT 1,
    updated_at DATETIME(3),

    PRIMARY KEY (shard_id, row_type, timer_execute_at, timer_uuid),
    UNIQUE INDEX idx_timer_lookup (shard_id, row_type, timer_namespace, timer_id)
) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin PARTITION BY HASH (shard_id) PARTITIONS 32;
