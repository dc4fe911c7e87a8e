CREATE FUNCTION chaos.note_beat() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO chaos.beats VALUES (new.id, new.beat_at);
    RETURN NULL;
END
$$;
