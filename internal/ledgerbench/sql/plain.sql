-- The smallest tables that a ledger without batches could do with. They are leaner than the product's, so what is compared
-- flatters the other designs.
CREATE SCHEMA plain;
CREATE TABLE plain.meters (
    limit_id bigint NOT NULL,
    subject  bigint NOT NULL,
    amount   bigint NOT NULL,
    spent    bigint NOT NULL DEFAULT 0,
    held     bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (limit_id, subject)
) WITH (fillfactor = 20);
CREATE TABLE plain.reservations (
    attempt_id uuid PRIMARY KEY,
    limits     bigint[] NOT NULL,
    subject    bigint NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE TABLE plain.rows (
    attempt_id uuid PRIMARY KEY,
    limits     bigint[] NOT NULL,
    subject    bigint NOT NULL,
    cost       bigint NOT NULL,
    settled_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
