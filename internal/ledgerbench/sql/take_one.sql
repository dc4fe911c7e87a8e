-- Takes one unit of one meter, if there is room.
UPDATE plain.meters SET held = held + 1
WHERE limit_id = $1 AND subject = $2 AND spent + held + 1 <= amount
