-- Registers this process, or finds its registration again, and returns its number.
SELECT ledger.register(@node::text, @boot::uuid, @version::text, @lease_seconds::int)
