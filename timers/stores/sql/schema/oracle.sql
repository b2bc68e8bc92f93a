-- The table of a timer store on Oracle 21c or newer. `manage.py timer_store migrate` executes these statements. They were
-- never run on a server.

CREATE TABLE timers (
    shard_id NUMBER(10) NOT NULL,
    row_type NUMBER(5) NOT NULL,                    -- 1 shard, 2 timer, 4 process, 5 namespace
    timer_execute_at TIMESTAMP(3) NOT NULL,         -- in UTC, as all times
    timer_uuid RAW(16) NOT NULL,

    timer_id VARCHAR2(255 CHAR) NOT NULL,
    timer_namespace VARCHAR2(255 CHAR) NOT NULL,
    timer_callback_url VARCHAR2(2048),
    timer_payload CLOB CHECK (timer_payload IS JSON),
    timer_retry_policy CLOB CHECK (timer_retry_policy IS JSON),
    timer_callback_timeout_seconds BINARY_DOUBLE DEFAULT 30,
    timer_created_at TIMESTAMP(3) DEFAULT SYS_EXTRACT_UTC(SYSTIMESTAMP) NOT NULL,
    timer_attempts NUMBER(10) DEFAULT 0 NOT NULL,

    shard_version NUMBER(19),
    shard_owner_id VARCHAR2(255),
    shard_claimed_at TIMESTAMP(3),
    shard_metadata CLOB CHECK (shard_metadata IS JSON),

    timer_revision RAW(16),
    timer_takes NUMBER(10) DEFAULT 0 NOT NULL,
    timer_taken_until TIMESTAMP(3) DEFAULT TIMESTAMP '1970-01-01 00:00:00' NOT NULL,
    timer_taken_by VARCHAR2(255),
    timer_take_id RAW(16),
    timer_requested_at TIMESTAMP(3),
    timer_first_started_at TIMESTAMP(3),
    timer_interruptions NUMBER(10) DEFAULT 0 NOT NULL,
    timer_next_seq NUMBER(19) DEFAULT 1 NOT NULL,
    timer_format NUMBER(10) DEFAULT 1 NOT NULL,
    updated_at TIMESTAMP(3),

    PRIMARY KEY (shard_id, row_type, timer_execute_at, timer_uuid)
) ORGANIZATION INDEX OVERFLOW PARTITION BY HASH (shard_id) PARTITIONS 32;

CREATE UNIQUE INDEX idx_timer_lookup ON timers (shard_id, row_type, timer_namespace, timer_id);
