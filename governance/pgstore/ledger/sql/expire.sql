-- Closes reservations that nobody will settle any more and returns how many.
SELECT ledger.expire(@count::int, @grace_seconds::int)
