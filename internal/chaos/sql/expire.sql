-- Expires as any gateway may, with another grace after a start of the database.
SELECT ledger.expire(1000, @grace);
