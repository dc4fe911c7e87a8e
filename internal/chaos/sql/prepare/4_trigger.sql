CREATE TRIGGER note_beat AFTER INSERT OR UPDATE OF beat_at ON ledger.processes
    FOR EACH ROW EXECUTE FUNCTION chaos.note_beat();
