-- The table of a timer store on PostgreSQL. `manage.py timer_store migrate` executes these statements.

CREATE TABLE IF NOT EXISTS timers (
    shard_id INTEGER NOT NULL,
    row_type SMALLINT NOT NULL,                     -- 1 shard, 2 timer, 4 process, 5 namespace
    timer_execute_at TIMESTAMP(3) NOT NULL,         -- in UTC, as all times
    timer_uuid UUID NOT NULL,

    timer_id VARCHAR(255) COLLATE "C" NOT NULL,
    timer_namespace VARCHAR(255) COLLATE "C" NOT NULL,
    timer_callback_url VARCHAR(2048),
    timer_payload JSONB,
    timer_retry_policy JSONB,
    timer_callback_timeout_seconds DOUBLE PRECISION DEFAULT 30,
    timer_created_at TIMESTAMP(3) NOT NULL DEFAULT NOW(),
    timer_attempts INTEGER NOT NULL DEFAULT 0,

    shard_version BIGINT,
    shard_owner_id VARCHAR(255),
    shard_claimed_at TIMESTAMP(3),
    shard_metadata JSONB,

    timer_revision UUID,
    timer_takes INTEGER NOT NULL DEFAULT 0,
    timer_taken_until TIMESTAMP(3) NOT NULL DEFAULT '1970-01-01 00:00:00',
    timer_taken_by VARCHAR(255),
    timer_take_id UUID,
    timer_requested_at TIMESTAMP(3),
    timer_first_started_at TIMESTAMP(3),
    timer_interruptions INTEGER NOT NULL DEFAULT 0,
    timer_next_seq BIGINT NOT NULL DEFAULT 1,
    timer_format INTEGER NOT NULL DEFAULT 1,
    updated_at TIMESTAMP(3),

    PRIMARY KEY (shard_id, row_type, timer_execute_at, timer_uuid)
) PARTITION BY HASH (shard_id);

CREATE TABLE IF NOT EXISTS timers_p0 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 0);
CREATE TABLE IF NOT EXISTS timers_p1 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 1);
CREATE TABLE IF NOT EXISTS timers_p2 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 2);
CREATE TABLE IF NOT EXISTS timers_p3 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 3);
CREATE TABLE IF NOT EXISTS timers_p4 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 4);
CREATE TABLE IF NOT EXISTS timers_p5 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 5);
CREATE TABLE IF NOT EXISTS timers_p6 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 6);
CREATE TABLE IF NOT EXISTS timers_p7 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 7);
CREATE TABLE IF NOT EXISTS timers_p8 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 8);
CREATE TABLE IF NOT EXISTS timers_p9 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 9);
CREATE TABLE IF NOT EXISTS timers_p10 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 10);
CREATE TABLE IF NOT EXISTS timers_p11 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 11);
CREATE TABLE IF NOT EXISTS timers_p12 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 12);
CREATE TABLE IF NOT EXISTS timers_p13 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 13);
CREATE TABLE IF NOT EXISTS timers_p14 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 14);
CREATE TABLE IF NOT EXISTS timers_p15 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 15);
CREATE TABLE IF NOT EXISTS timers_p16 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 16);
CREATE TABLE IF NOT EXISTS timers_p17 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 17);
CREATE TABLE IF NOT EXISTS timers_p18 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 18);
CREATE TABLE IF NOT EXISTS timers_p19 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 19);
CREATE TABLE IF NOT EXISTS timers_p20 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 20);
CREATE TABLE IF NOT EXISTS timers_p21 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 21);
CREATE TABLE IF NOT EXISTS timers_p22 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 22);
CREATE TABLE IF NOT EXISTS timers_p23 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 23);
CREATE TABLE IF NOT EXISTS timers_p24 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 24);
CREATE TABLE IF NOT EXISTS timers_p25 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 25);
CREATE TABLE IF NOT EXISTS timers_p26 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 26);
CREATE TABLE IF NOT EXISTS timers_p27 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 27);
CREATE TABLE IF NOT EXISTS timers_p28 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 28);
CREATE TABLE IF NOT EXISTS timers_p29 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 29);
CREATE TABLE IF NOT EXISTS timers_p30 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 30);
CREATE TABLE IF NOT EXISTS timers_p31 PARTITION OF timers FOR VALUES WITH (MODULUS 32, REMAINDER 31);

CREATE UNIQUE INDEX IF NOT EXISTS idx_timer_lookup ON timers (shard_id, row_type, timer_namespace, timer_id);

-- What a feeder changes in batches is changed by functions, each row by its primary key. One UPDATE that names many rows is
-- planned for all partitions, and reads every timer of a shard as long as the table has no statistics. A function is one
-- statement and one transaction, so a client that freezes holds no lock.

CREATE OR REPLACE FUNCTION take_timers(
    shards INTEGER[], times TIMESTAMP[], uuids UUID[], revisions UUID[], takes INTEGER[], taken_until TIMESTAMP[],
    new_taken_until TIMESTAMP, cell VARCHAR, take_id UUID
) RETURNS SETOF UUID LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    FOR i IN 1 .. cardinality(shards) LOOP
        RETURN QUERY UPDATE timers SET
            timer_takes = timer_takes + 1, timer_taken_until = new_taken_until, timer_taken_by = cell,
            timer_take_id = take_id, updated_at = timezone('UTC', clock_timestamp())
        WHERE shard_id = shards[i] AND row_type = 2 AND timer_execute_at = times[i] AND timer_uuid = uuids[i]
            AND timer_revision = revisions[i] AND timer_takes = takes[i] AND timer_taken_until = taken_until[i]
        RETURNING timer_uuid;
    END LOOP;
 END $$;

CREATE OR REPLACE FUNCTION reschedule_timers(
    shards INTEGER[], times TIMESTAMP[], uuids UUID[], revisions UUID[], takes INTEGER[], cell VARCHAR,
    new_times TIMESTAMP[], progressed BOOLEAN[], attempts INTEGER[], interruptions INTEGER[],
    first_started_at TIMESTAMP[], next_seq BIGINT[]
) RETURNS SETOF UUID LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    FOR i IN 1 .. cardinality(shards) LOOP
        RETURN QUERY UPDATE timers SET
            timer_execute_at = new_times[i], timer_taken_until = '1970-01-01', timer_taken_by = NULL,
            timer_take_id = NULL, updated_at = timezone('UTC', clock_timestamp()),
            timer_attempts = CASE WHEN progressed[i] THEN attempts[i] ELSE timer_attempts END,
            timer_interruptions = CASE WHEN progressed[i] THEN interruptions[i] ELSE timer_interruptions END,
            timer_first_started_at = CASE WHEN progressed[i] THEN first_started_at[i] ELSE timer_first_started_at END,
            timer_next_seq = CASE WHEN progressed[i] THEN next_seq[i] ELSE timer_next_seq END
        WHERE shard_id = shards[i] AND row_type = 2 AND timer_execute_at = times[i] AND timer_uuid = uuids[i]
            AND timer_revision = revisions[i] AND timer_takes = takes[i] AND timer_taken_by = cell
        RETURNING timer_uuid;
    END LOOP;
 END $$;

CREATE OR REPLACE FUNCTION remove_timers(
    shards INTEGER[], times TIMESTAMP[], uuids UUID[], revisions UUID[], takes INTEGER[], cell VARCHAR
) RETURNS SETOF UUID LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    FOR i IN 1 .. cardinality(shards) LOOP
        RETURN QUERY DELETE FROM timers
        WHERE shard_id = shards[i] AND row_type = 2 AND timer_execute_at = times[i] AND timer_uuid = uuids[i]
            AND timer_revision = revisions[i] AND timer_takes = takes[i] AND timer_taken_by = cell
        RETURNING timer_uuid;
    END LOOP;
 END $$;
