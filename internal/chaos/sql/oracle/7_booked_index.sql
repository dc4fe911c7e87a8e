CREATE INDEX ON booked (tag, attempt_id);
