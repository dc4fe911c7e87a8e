-- Members of requests that a target refuses: they are taken out of what is sent to it, and the client is told.
SET LOCAL lock_timeout = '5s';

ALTER TABLE tollgate.targets ADD COLUMN dropped_members text[] NOT NULL DEFAULT '{}' CHECK (cardinality(dropped_members) <= 20);
