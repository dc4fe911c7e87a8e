DROP PROCEDURE ledger.batch_commit;
DROP FUNCTION ledger.clean, ledger.expire, ledger.stop, ledger.beat, ledger.register, ledger.batch, ledger.make_meters,
    ledger.leg_class, ledger.windows_between, ledger.window_start;
