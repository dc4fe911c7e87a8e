-- When each process was heard of, which the product itself forgets with the next heartbeat.
CREATE TABLE chaos.beats (process_id bigint NOT NULL, at timestamptz NOT NULL);
