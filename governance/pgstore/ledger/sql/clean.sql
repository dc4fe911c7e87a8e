-- Removes what nobody needs any more and returns how many rows went.
SELECT ledger.clean($1::int)
