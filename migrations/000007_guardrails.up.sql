-- Guardrails: rules about what may be said to models and by them.
SET LOCAL lock_timeout = '5s';

CREATE TABLE tollgate.guardrails (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id       text NOT NULL UNIQUE,
    organization_id bigint REFERENCES tollgate.organizations, -- NULL: in force for all
    team_id         bigint REFERENCES tollgate.teams,         -- set: only calls of this team
    key_id          bigint REFERENCES tollgate.virtual_keys,  -- set: only calls of this key
    name            text NOT NULL CHECK (octet_length(name) BETWEEN 1 AND 200),
    models          text[] NOT NULL DEFAULT '{}' CHECK (cardinality(models) <= 200),
    stage           text NOT NULL CHECK (stage IN ('request', 'answer', 'both')),
    rule            jsonb NOT NULL CHECK (jsonb_typeof(rule) = 'object'),
    action          text NOT NULL CHECK (action IN ('mask', 'block', 'log')),
    allow_on_error  boolean NOT NULL DEFAULT false,
    disabled        boolean NOT NULL DEFAULT false,
    secret          bytea, -- sealed: signs the calls of a webhook
    version         bigint NOT NULL DEFAULT 1,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at      timestamptz,
    CHECK (team_id IS NULL OR key_id IS NULL),
    CHECK (organization_id IS NOT NULL OR team_id IS NULL AND key_id IS NULL)
);
CREATE UNIQUE INDEX guardrails_name ON tollgate.guardrails (coalesce(organization_id, 0), name) WHERE deleted_at IS NULL;

GRANT SELECT ON tollgate.guardrails TO tollgate_gateway, tollgate_control;
GRANT INSERT, UPDATE ON tollgate.guardrails TO tollgate_control;
