-- Rows as they were when they were first seen.
CREATE TEMP TABLE witnessed (id text PRIMARY KEY, hash text NOT NULL);
