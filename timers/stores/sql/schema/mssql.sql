-- The table of a timer store on SQL Server 2022 or newer. `manage.py timer_store migrate` executes these statements. They
-- were never run on a server.

CREATE PARTITION FUNCTION pf_shard_id (INT)
AS RANGE LEFT FOR VALUES (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15,
                          16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30);

CREATE PARTITION SCHEME ps_shard_id AS PARTITION pf_shard_id ALL TO ([PRIMARY]);

CREATE TABLE timers (
    shard_id INT NOT NULL,
    row_type SMALLINT NOT NULL,                     -- 1 shard, 2 timer, 4 process, 5 namespace
    timer_execute_at DATETIME2(3) NOT NULL,         -- in UTC, as all times
    timer_uuid UNIQUEIDENTIFIER NOT NULL,

    timer_id NVARCHAR(255) COLLATE Latin1_General_100_BIN2 NOT NULL,
    timer_namespace NVARCHAR(255) COLLATE Latin1_General_100_BIN2 NOT NULL,
    timer_callback_url NVARCHAR(2048),
    timer_payload NVARCHAR(MAX) CHECK (ISJSON(timer_payload, VALUE) = 1),
    timer_retry_policy NVARCHAR(MAX) CHECK (ISJSON(timer_retry_policy) = 1),
    timer_callback_timeout_seconds FLOAT DEFAULT 30,
    timer_created_at DATETIME2(3) NOT NULL DEFAULT GETUTCDATE(),
    timer_attempts INT NOT NULL DEFAULT 0,

    shard_version BIGINT,
    shard_owner_id NVARCHAR(255),
    shard_claimed_at DATETIME2(3),
    shard_metadata NVARCHAR(MAX) CHECK (ISJSON(shard_metadata) = 1),

    timer_revision UNIQUEIDENTIFIER,
    timer_takes INT NOT NULL DEFAULT 0,
    timer_taken_until DATETIME2(3) NOT NULL DEFAULT '1970-01-01T00:00:00',
    timer_taken_by NVARCHAR(255),
    timer_take_id UNIQUEIDENTIFIER,
    timer_requested_at DATETIME2(3),
    timer_first_started_at DATETIME2(3),
    timer_interruptions INT NOT NULL DEFAULT 0,
    timer_next_seq BIGINT NOT NULL DEFAULT 1,
    timer_format INT NOT NULL DEFAULT 1,
    updated_at DATETIME2(3),

    PRIMARY KEY CLUSTERED (shard_id, row_type, timer_execute_at, timer_uuid)
) ON ps_shard_id (shard_id);

CREATE UNIQUE INDEX idx_timer_lookup ON timers (shard_id, row_type, timer_namespace, timer_id);
