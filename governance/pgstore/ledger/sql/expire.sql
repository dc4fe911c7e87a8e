-- Closes reservations that nobody will settle any more and returns how many.
SELECT ledger.expire($1::int, $2::int)
