DROP TRIGGER refill_at_old_rate ON tollgate.limits;
DROP FUNCTION ledger.refill_at_old_rate;
DROP PROCEDURE ledger.batch_commit;
DROP FUNCTION ledger.clean, ledger.expire, ledger.stop, ledger.beat, ledger.register, ledger.batch, ledger.meters_at, ledger.make_meters,
    ledger.leg_class, ledger.windows_between, ledger.window_start;
