-- Turns one held unit of one meter into a spent one.
UPDATE plain.meters SET held = held - 1, spent = spent + 1 WHERE limit_id = $1 AND subject = $2
