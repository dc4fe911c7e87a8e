-- When the database was away, and when the driver began to expire what was left, without a grace.
CREATE TEMP TABLE outages (began timestamptz NOT NULL, over timestamptz NOT NULL, calm timestamptz NOT NULL);
