-- name: organizations_read
SELECT o.id AS num, o.public_id AS id, o.version, o.created_at, o.updated_at, o.deleted_at,
    o.name, o.blocked, o.budget_status, o.require_budget, o.require
FROM tollgate.organizations AS o
WHERE (@id::text = '' OR o.public_id = @id::text)
  AND (@num::bigint = 0 OR o.id = @num::bigint)
  AND (@bound::bigint = 0 OR o.id = @bound::bigint)
  AND (@organization::text = '' OR o.public_id = @organization::text)
  AND (@name::text = '' OR o.name = @name::text)
  AND (@deleted::boolean OR o.deleted_at IS NULL)
  AND o.id > @after::bigint
ORDER BY o.id
LIMIT @count::bigint;

-- name: organizations_insert
INSERT INTO tollgate.organizations (public_id, name, blocked, budget_status, require_budget, require)
VALUES (@public_id::text, @name::text, @blocked::boolean, @budget_status::smallint, @require_budget::boolean, @require::text[])
RETURNING id;

-- name: organizations_update
UPDATE tollgate.organizations
SET name = @name::text, blocked = @blocked::boolean, budget_status = @budget_status::smallint,
    require_budget = @require_budget::boolean, require = @require::text[],
    version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: organizations_delete
UPDATE tollgate.organizations SET deleted_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: teams_read
-- What lies in a deleted organization is gone with it.
SELECT t.id AS num, t.public_id AS id, t.version, t.created_at, t.updated_at, t.deleted_at,
    o.id AS organization_num, o.public_id AS organization_id, o.name AS organization_name,
    t.name, t.blocked, t.models
FROM tollgate.teams AS t
JOIN tollgate.organizations AS o ON o.id = t.organization_id
WHERE (@id::text = '' OR t.public_id = @id::text)
  AND (@num::bigint = 0 OR t.id = @num::bigint)
  AND (@bound::bigint = 0 OR t.organization_id = @bound::bigint)
  AND (@organization::text = '' OR o.public_id = @organization::text)
  AND (@team::text = '' OR t.public_id = @team::text)
  AND (@name::text = '' OR t.name = @name::text)
  AND (@deleted::boolean OR t.deleted_at IS NULL AND o.deleted_at IS NULL)
  AND t.id > @after::bigint
ORDER BY t.id
LIMIT @count::bigint;

-- name: teams_insert
INSERT INTO tollgate.teams (public_id, organization_id, name, blocked, models)
VALUES (@public_id::text, @organization_num::bigint, @name::text, @blocked::boolean, @models::text[])
RETURNING id;

-- name: teams_update
UPDATE tollgate.teams
SET name = @name::text, blocked = @blocked::boolean, models = @models::text[],
    version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: teams_delete
UPDATE tollgate.teams SET deleted_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: users_read
SELECT u.id AS num, u.public_id AS id, u.version, u.created_at, u.updated_at, u.deleted_at,
    o.id AS organization_num, o.public_id AS organization_id, o.name AS organization_name,
    u.name, u.email, u.blocked
FROM tollgate.users AS u
JOIN tollgate.organizations AS o ON o.id = u.organization_id
WHERE (@id::text = '' OR u.public_id = @id::text)
  AND (@num::bigint = 0 OR u.id = @num::bigint)
  AND (@bound::bigint = 0 OR u.organization_id = @bound::bigint)
  AND (@organization::text = '' OR o.public_id = @organization::text)
  AND (@team::text = '' OR EXISTS (
      SELECT FROM tollgate.memberships AS m
      JOIN tollgate.teams AS t ON t.id = m.team_id
      WHERE m.user_id = u.id AND m.deleted_at IS NULL AND t.public_id = @team::text
  ))
  AND (@name::text = '' OR u.name = @name::text)
  AND (@deleted::boolean OR u.deleted_at IS NULL AND o.deleted_at IS NULL)
  AND u.id > @after::bigint
ORDER BY u.id
LIMIT @count::bigint;

-- name: users_insert
INSERT INTO tollgate.users (public_id, organization_id, name, email, blocked)
VALUES (@public_id::text, @organization_num::bigint, @name::text, @email::text, @blocked::boolean)
RETURNING id;

-- name: users_update
UPDATE tollgate.users
SET name = @name::text, email = @email::text, blocked = @blocked::boolean,
    version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: users_delete
UPDATE tollgate.users SET deleted_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: memberships_read
SELECT m.id AS num, m.public_id AS id, m.version, m.created_at, m.updated_at, m.deleted_at,
    o.id AS organization_num, o.public_id AS organization_id, o.name AS organization_name,
    u.id AS user_num, u.public_id AS user_id, u.name AS user_name,
    t.id AS team_num, t.public_id AS team_id, t.name AS team_name,
    m.role
FROM tollgate.memberships AS m
JOIN tollgate.users AS u ON u.id = m.user_id
JOIN tollgate.teams AS t ON t.id = m.team_id
JOIN tollgate.organizations AS o ON o.id = t.organization_id
WHERE (@id::text = '' OR m.public_id = @id::text)
  AND (@num::bigint = 0 OR m.id = @num::bigint)
  AND (@bound::bigint = 0 OR t.organization_id = @bound::bigint)
  AND (@organization::text = '' OR o.public_id = @organization::text)
  AND (@team::text = '' OR t.public_id = @team::text)
  AND (@scope_id::text = '' OR u.public_id = @scope_id::text)
  AND (@deleted::boolean
       OR m.deleted_at IS NULL AND u.deleted_at IS NULL AND t.deleted_at IS NULL AND o.deleted_at IS NULL)
  AND m.id > @after::bigint
ORDER BY m.id
LIMIT @count::bigint;

-- name: memberships_insert
INSERT INTO tollgate.memberships (public_id, user_id, team_id, role)
VALUES (@public_id::text, @user_num::bigint, @team_num::bigint, @role::text)
RETURNING id;

-- name: memberships_update
UPDATE tollgate.memberships SET role = @role::text, version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;

-- name: memberships_delete
UPDATE tollgate.memberships SET deleted_at = clock_timestamp(), version = version + 1, updated_at = clock_timestamp()
WHERE id = @num::bigint AND version = @version::bigint AND deleted_at IS NULL;
