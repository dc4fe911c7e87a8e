-- What the upstream saw.
CREATE TEMP TABLE arrived (tag text NOT NULL, began timestamptz NOT NULL, over timestamptz NOT NULL);
