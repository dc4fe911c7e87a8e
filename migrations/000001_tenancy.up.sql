-- Who may call what: organizations, teams, users, keys, providers, models, limits, prices, and the record of changes.
-- Everything has a row number (id), which meters and ledger rows refer to, and a random public id, which clients see.
SET LOCAL lock_timeout = '5s';

-- Roles are the cluster's, so another database may have made them. Operators set their passwords.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['tollgate_gateway', 'tollgate_control'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I LOGIN', name);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END LOOP;
END
$$;
-- Only what differs is set, since two databases of one cluster may be migrated at the same time and the catalogue refuses
-- concurrent changes of one row.
DO $$
DECLARE
    wanted record;
BEGIN
    FOR wanted IN
        SELECT w.role, w.name, w.setting
        FROM (VALUES
            ('tollgate_gateway', 'lock_timeout', '2s'),
            ('tollgate_gateway', 'statement_timeout', '3s'),
            ('tollgate_gateway', 'idle_in_transaction_session_timeout', '5s'),
            ('tollgate_control', 'lock_timeout', '2s'),
            ('tollgate_control', 'statement_timeout', '10s'),
            ('tollgate_control', 'idle_in_transaction_session_timeout', '10s')
        ) AS w (role, name, setting)
        WHERE NOT EXISTS (
            SELECT FROM pg_db_role_setting AS s
            JOIN pg_roles AS r ON r.oid = s.setrole
            WHERE s.setdatabase = 0 AND r.rolname = w.role AND w.name || '=' || w.setting = ANY (s.setconfig)
        )
    LOOP
        EXECUTE format('ALTER ROLE %I SET %I = %L', wanted.role, wanted.name, wanted.setting);
    END LOOP;
END
$$;

CREATE SCHEMA tollgate;
GRANT USAGE ON SCHEMA tollgate TO tollgate_gateway, tollgate_control;

-- One row; its lock makes changes commit in the order of their versions, so that a reader never skips one.
CREATE TABLE tollgate.config_state (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version  bigint NOT NULL
);
INSERT INTO tollgate.config_state (version) VALUES (1);

CREATE TABLE tollgate.config_changes (
    version     bigint NOT NULL,
    resource    text NOT NULL,
    resource_id bigint NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (version, resource, resource_id)
);

CREATE TABLE tollgate.organizations (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id      text NOT NULL UNIQUE,
    name           text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    blocked        boolean NOT NULL DEFAULT false,
    budget_status  smallint NOT NULL DEFAULT 429 CHECK (budget_status IN (402, 429)),
    require_budget boolean NOT NULL DEFAULT false,
    require        text[] NOT NULL DEFAULT '{}',
    version        bigint NOT NULL DEFAULT 1,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at     timestamptz
);
CREATE UNIQUE INDEX organizations_name ON tollgate.organizations (name) WHERE deleted_at IS NULL;

CREATE TABLE tollgate.teams (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id       text NOT NULL UNIQUE,
    organization_id bigint NOT NULL REFERENCES tollgate.organizations,
    name            text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    blocked         boolean NOT NULL DEFAULT false,
    models          text[],
    version         bigint NOT NULL DEFAULT 1,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at      timestamptz
);
CREATE UNIQUE INDEX teams_name ON tollgate.teams (organization_id, name) WHERE deleted_at IS NULL;

CREATE TABLE tollgate.users (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id       text NOT NULL UNIQUE,
    organization_id bigint NOT NULL REFERENCES tollgate.organizations,
    name            text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    email           text NOT NULL DEFAULT '',
    blocked         boolean NOT NULL DEFAULT false,
    version         bigint NOT NULL DEFAULT 1,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at      timestamptz
);
CREATE UNIQUE INDEX users_email ON tollgate.users (organization_id, lower(email)) WHERE deleted_at IS NULL AND email <> '';
CREATE INDEX users_organization ON tollgate.users (organization_id, id);

CREATE TABLE tollgate.memberships (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id  text NOT NULL UNIQUE,
    user_id    bigint NOT NULL REFERENCES tollgate.users,
    team_id    bigint NOT NULL REFERENCES tollgate.teams,
    role       text NOT NULL CHECK (role IN ('owner', 'admin', 'team_admin', 'developer', 'finance', 'auditor')),
    version    bigint NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at timestamptz
);
CREATE UNIQUE INDEX memberships_once ON tollgate.memberships (user_id, team_id) WHERE deleted_at IS NULL;

-- The mapping that makes end users erasable: ledger rows hold only the number.
CREATE TABLE tollgate.end_users (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    organization_id bigint NOT NULL REFERENCES tollgate.organizations,
    name            text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 256),
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (organization_id, name)
);

CREATE TABLE tollgate.virtual_keys (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id       text NOT NULL UNIQUE,
    organization_id bigint NOT NULL REFERENCES tollgate.organizations,
    team_id         bigint REFERENCES tollgate.teams,
    user_id         bigint REFERENCES tollgate.users,
    name            text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    models          text[],
    expires_at      timestamptz,
    blocked         boolean NOT NULL DEFAULT false,
    revoked_at      timestamptz,
    budget_status   smallint CHECK (budget_status IN (402, 429)),
    last_used_at    timestamptz,
    version         bigint NOT NULL DEFAULT 1,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at      timestamptz
);
CREATE INDEX virtual_keys_organization ON tollgate.virtual_keys (organization_id, id);
CREATE INDEX virtual_keys_team ON tollgate.virtual_keys (team_id, id);

-- During a rotation's grace a key has two secrets. Only the control plane writes here, and without the pepper it cannot
-- make a secret that passes.
CREATE TABLE tollgate.key_secrets (
    public_id  text PRIMARY KEY,
    key_id     bigint NOT NULL REFERENCES tollgate.virtual_keys,
    hash       bytea NOT NULL CHECK (octet_length(hash) = 32),
    pepper_id  text NOT NULL,
    last4      text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz
);
CREATE INDEX key_secrets_key ON tollgate.key_secrets (key_id);

CREATE TABLE tollgate.providers (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id       text NOT NULL UNIQUE,
    organization_id bigint REFERENCES tollgate.organizations,
    name            text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    kind            text NOT NULL,
    base_url        text NOT NULL,
    credential      bytea, -- sealed; see the package that seals it
    price_provider  text NOT NULL DEFAULT '', -- name in the price book; empty: the provider's own name
    version         bigint NOT NULL DEFAULT 1,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at      timestamptz
);
CREATE UNIQUE INDEX providers_name ON tollgate.providers (coalesce(organization_id, 0), name) WHERE deleted_at IS NULL;

CREATE TABLE tollgate.targets (
    id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id         text NOT NULL UNIQUE,
    provider_id       bigint NOT NULL REFERENCES tollgate.providers,
    upstream_model    text NOT NULL CHECK (octet_length(upstream_model) BETWEEN 1 AND 300),
    on_disconnect     text NOT NULL DEFAULT 'abort' CHECK (on_disconnect IN ('abort', 'drain')),
    no_stream_options boolean NOT NULL DEFAULT false,
    max_output        bigint NOT NULL DEFAULT 0 CHECK (max_output >= 0),
    version           bigint NOT NULL DEFAULT 1,
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (provider_id, upstream_model)
);

CREATE TABLE tollgate.models (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id       text NOT NULL UNIQUE,
    organization_id bigint REFERENCES tollgate.organizations,
    name            text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 300),
    version         bigint NOT NULL DEFAULT 1,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at      timestamptz
);
CREATE UNIQUE INDEX models_name ON tollgate.models (coalesce(organization_id, 0), name) WHERE deleted_at IS NULL;

CREATE TABLE tollgate.model_targets (
    model_id  bigint NOT NULL REFERENCES tollgate.models,
    target_id bigint NOT NULL REFERENCES tollgate.targets,
    position  int NOT NULL,
    weight    int NOT NULL CHECK (weight BETWEEN 1 AND 1000000),
    priority  int NOT NULL CHECK (priority BETWEEN 0 AND 1000),
    PRIMARY KEY (model_id, target_id)
);

-- Amounts are whole requests, tokens or slots, and nano-dollars where the metric is cost. NULL: unlimited, still counted.
CREATE TABLE tollgate.limits (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id       text NOT NULL UNIQUE,
    organization_id bigint REFERENCES tollgate.organizations,
    scope_type      text NOT NULL CHECK (scope_type IN ('model', 'target', 'organization', 'team', 'key', 'user', 'end_user')),
    scope_id        bigint, -- row number of the subject; NULL: each member has a meter of its own
    within_type     text CHECK (within_type IN ('organization', 'team', 'key', 'user')),
    within_id       bigint,
    models          text[] NOT NULL DEFAULT '{}',
    routes          text[] NOT NULL DEFAULT '{}',
    kind            text NOT NULL CHECK (kind IN ('rate', 'budget', 'concurrency')),
    metric          text NOT NULL CHECK (metric IN ('requests', 'tokens', 'input_tokens', 'output_tokens', 'cost')),
    amount          bigint CHECK (amount >= 0),
    per_seconds     int CHECK (per_seconds IN (1, 60, 3600, 86400)),
    burst           bigint CHECK (burst >= 0),
    window_type     text CHECK (window_type IN ('calendar', 'fixed', 'total')),
    window_period   text CHECK (window_period IN ('day', 'week', 'month', 'quarter', 'year')),
    window_zone     text,
    window_seconds  bigint CHECK (window_seconds >= 1),
    window_anchor   timestamptz,
    carry_debt      boolean NOT NULL DEFAULT true,
    reserve         text NOT NULL DEFAULT 'declared' CHECK (reserve IN ('declared', 'expected', 'maximum')),
    enforcement     text NOT NULL DEFAULT 'exact' CHECK (enforcement IN ('exact', 'convergent', 'advisory')),
    mode            text NOT NULL DEFAULT 'enforce' CHECK (mode IN ('enforce', 'log')),
    thresholds      int[] NOT NULL DEFAULT '{50,80,100}',
    starts_at       timestamptz,
    expires_at      timestamptz,
    reason          text NOT NULL DEFAULT '',
    version         bigint NOT NULL DEFAULT 1,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at      timestamptz,
    CHECK ((kind = 'rate') = (per_seconds IS NOT NULL)),
    CHECK ((kind = 'budget') = (window_type IS NOT NULL)),
    CHECK (kind <> 'rate' OR (amount IS NULL) = (burst IS NULL)),
    CHECK ((window_type = 'calendar') = (window_period IS NOT NULL)),
    CHECK ((window_type = 'fixed') = (window_seconds IS NOT NULL))
);
-- The identity of a limit (ruling 2), deleted ones included, since creating one again revives it.
CREATE UNIQUE INDEX limits_identity ON tollgate.limits (
    coalesce(organization_id, 0), scope_type, coalesce(scope_id, 0), coalesce(within_type, ''), coalesce(within_id, 0),
    models, routes, kind, metric, coalesce(per_seconds, 0), coalesce(window_type, ''), coalesce(window_period, ''),
    coalesce(window_zone, ''), coalesce(window_seconds, 0)
);
CREATE INDEX limits_scope ON tollgate.limits (scope_type, scope_id);

CREATE TABLE tollgate.price_versions (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id      text NOT NULL UNIQUE,
    provider       text NOT NULL,
    upstream_model text NOT NULL,
    effective_from timestamptz NOT NULL,
    free           boolean NOT NULL DEFAULT false,
    source         text NOT NULL DEFAULT '',
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (provider, upstream_model, effective_from)
);

-- Whatever a limit may name, by its kind and number. An end user has no id but its name.
CREATE VIEW tollgate.subjects (type, id, public_id, name) AS
SELECT 'organization', id, public_id, name FROM tollgate.organizations
UNION ALL SELECT 'team', id, public_id, name FROM tollgate.teams
UNION ALL SELECT 'key', id, public_id, name FROM tollgate.virtual_keys
UNION ALL SELECT 'user', id, public_id, name FROM tollgate.users
UNION ALL SELECT 'end_user', id, name, name FROM tollgate.end_users
UNION ALL SELECT 'model', id, public_id, name FROM tollgate.models
UNION ALL SELECT 'target', id, public_id, upstream_model FROM tollgate.targets;

-- Nano-dollars per million units. The unit is the number of governance.Unit.
CREATE TABLE tollgate.price_units (
    price_id     bigint NOT NULL REFERENCES tollgate.price_versions,
    service_tier text NOT NULL DEFAULT '',
    from_input   bigint NOT NULL DEFAULT 0 CHECK (from_input >= 0),
    unit         smallint NOT NULL CHECK (unit BETWEEN 0 AND 31),
    per_million  bigint NOT NULL CHECK (per_million >= 0),
    PRIMARY KEY (price_id, service_tier, from_input, unit)
);

CREATE TABLE tollgate.output_statistics (
    target_id   bigint PRIMARY KEY REFERENCES tollgate.targets,
    p99_output  bigint NOT NULL CHECK (p99_output >= 0),
    p95_rate    bigint NOT NULL CHECK (p95_rate >= 0),
    computed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE tollgate.audit_log (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at              timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor_kind      text NOT NULL,
    actor_id        text NOT NULL,
    actor_name      text NOT NULL,
    ip              text NOT NULL,
    request_id      text NOT NULL,
    reason          text NOT NULL,
    action          text NOT NULL,
    resource        text NOT NULL,
    resource_id     text NOT NULL,
    organization_id bigint,
    before          jsonb,
    after           jsonb
);
CREATE INDEX audit_log_organization ON tollgate.audit_log (organization_id, id);
CREATE INDEX audit_log_resource ON tollgate.audit_log (resource, resource_id, id);

-- What proves at start that a process holds the right secrets, without revealing them.
CREATE TABLE tollgate.secret_checks (
    kind  text NOT NULL CHECK (kind IN ('pepper', 'encryption')),
    id    text NOT NULL,
    proof bytea NOT NULL,
    PRIMARY KEY (kind, id)
);

CREATE TABLE tollgate.idempotency_keys (
    key_id          bigint NOT NULL REFERENCES tollgate.virtual_keys,
    idempotency_key text NOT NULL CHECK (octet_length(idempotency_key) BETWEEN 1 AND 255),
    body_hash       bytea NOT NULL CHECK (octet_length(body_hash) = 32),
    request_id      uuid NOT NULL,
    finished        boolean NOT NULL DEFAULT false,
    claimed_until   timestamptz NOT NULL, -- a claim that its gateway never finished ends here
    expires_at      timestamptz NOT NULL,
    PRIMARY KEY (key_id, idempotency_key)
);
CREATE INDEX idempotency_keys_expiry ON tollgate.idempotency_keys (expires_at);

-- What was recorded stays as it was, whichever role comes: not even the owner changes it by an ordinary statement.
CREATE FUNCTION tollgate.refuse_change() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are only ever added', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER audit_log_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON tollgate.audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_change();
CREATE TRIGGER price_versions_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON tollgate.price_versions
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_change();
CREATE TRIGGER price_units_are_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON tollgate.price_units
    FOR EACH STATEMENT EXECUTE FUNCTION tollgate.refuse_change();

-- The data plane alone sees keys, so it alone can store them under a newer pepper. It can replace a hash that it has read by
-- another one and nothing else; without the pepper nobody can make one that fits a key.
CREATE FUNCTION tollgate.rehash_secret(of_public_id text, old_hash bytea, new_hash bytea, new_pepper_id text) RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog AS $$
    WITH done AS (
        UPDATE tollgate.key_secrets AS s
        SET hash = new_hash, pepper_id = new_pepper_id
        WHERE s.public_id = of_public_id AND s.hash = old_hash AND s.pepper_id <> new_pepper_id
        RETURNING 1
    )
    SELECT EXISTS (SELECT FROM done)
$$;
REVOKE ALL ON FUNCTION tollgate.rehash_secret FROM PUBLIC;
GRANT EXECUTE ON FUNCTION tollgate.rehash_secret TO tollgate_gateway, tollgate_control;

-- The data plane reads what it needs to decide and writes nothing that could widen what a caller may do. It reads neither
-- the record of changes nor who is a member of what.
GRANT SELECT ON
    tollgate.config_state, tollgate.config_changes, tollgate.organizations, tollgate.teams, tollgate.users,
    tollgate.end_users, tollgate.virtual_keys, tollgate.key_secrets, tollgate.providers, tollgate.targets, tollgate.models,
    tollgate.model_targets, tollgate.limits, tollgate.price_versions, tollgate.price_units, tollgate.output_statistics,
    tollgate.secret_checks, tollgate.idempotency_keys, tollgate.subjects
    TO tollgate_gateway;
GRANT INSERT ON tollgate.end_users TO tollgate_gateway;
GRANT UPDATE (last_used_at) ON tollgate.virtual_keys TO tollgate_gateway;
GRANT INSERT, UPDATE, DELETE ON tollgate.idempotency_keys, tollgate.output_statistics TO tollgate_gateway;

GRANT SELECT ON ALL TABLES IN SCHEMA tollgate TO tollgate_control;
GRANT INSERT, UPDATE ON
    tollgate.organizations, tollgate.teams, tollgate.users, tollgate.memberships, tollgate.end_users, tollgate.virtual_keys,
    tollgate.key_secrets, tollgate.providers, tollgate.targets, tollgate.models, tollgate.limits
    TO tollgate_control;
GRANT INSERT ON tollgate.config_changes, tollgate.price_versions, tollgate.price_units, tollgate.audit_log,
    tollgate.secret_checks TO tollgate_control;
GRANT UPDATE ON tollgate.config_state TO tollgate_control;
GRANT INSERT, DELETE ON tollgate.model_targets TO tollgate_control;
GRANT DELETE ON tollgate.config_changes, tollgate.end_users TO tollgate_control;
GRANT INSERT, UPDATE, DELETE ON tollgate.idempotency_keys, tollgate.output_statistics TO tollgate_control;

-- A server asks whether the schema is new enough.
DO $$
BEGIN
    IF to_regclass('schema_migrations') IS NOT NULL THEN
        GRANT SELECT ON schema_migrations TO tollgate_gateway, tollgate_control;
    END IF;
END
$$;
