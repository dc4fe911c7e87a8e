-- Which target has a response that its provider keeps: whoever goes on from it must go there, on every replica, and only its own
-- organization may.
SET LOCAL lock_timeout = '5s';

CREATE TABLE tollgate.stored_responses (
    organization_id bigint NOT NULL REFERENCES tollgate.organizations,
    response_hash   bytea NOT NULL CHECK (octet_length(response_hash) = 32), -- SHA-256 of the provider's id
    target_id       bigint NOT NULL REFERENCES tollgate.targets,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (organization_id, response_hash)
);
CREATE INDEX stored_responses_age ON tollgate.stored_responses (created_at);

-- FOR UPDATE SKIP LOCKED needs the right to update.
GRANT SELECT, INSERT, UPDATE, DELETE ON tollgate.stored_responses TO tollgate_gateway, tollgate_control;
