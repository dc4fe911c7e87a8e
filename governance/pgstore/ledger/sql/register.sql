-- Registers this process, or finds its registration again, and returns its number.
SELECT ledger.register($1::text, $2::uuid, $3::text, $4::int)
