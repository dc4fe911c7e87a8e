CREATE INDEX ON arrived (tag);
