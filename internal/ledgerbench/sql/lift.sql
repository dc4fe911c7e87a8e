-- Removes the note of what an attempt holds.
DELETE FROM plain.reservations WHERE attempt_id = $1
