-- What clients sent and saw.
CREATE TEMP TABLE sent (
    tag text PRIMARY KEY, key_id text NOT NULL, burst int NOT NULL, slots int NOT NULL, input_used bigint NOT NULL,
    output_used bigint NOT NULL, faulty boolean NOT NULL, leaves boolean NOT NULL, status int NOT NULL, code text NOT NULL,
    whole boolean NOT NULL, gone boolean NOT NULL, sent_at timestamptz NOT NULL, done_at timestamptz NOT NULL
);
