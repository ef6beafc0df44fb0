-- The ledger on PostgreSQL: one journal, append-only, and the sums that it implies.
-- All amounts are canonical JSON arrays of non-negative integers (units of 1e-36).
-- Texts are compared byte by byte, so that no locale changes an order or an index.

CREATE SCHEMA dpflow;
REVOKE ALL ON SCHEMA dpflow FROM PUBLIC;

CREATE TABLE dpflow.ledger (
    one bigint PRIMARY KEY CHECK (one = 1),        -- exactly one row
    ledger_id text COLLATE "C" NOT NULL,
    schema_version bigint NOT NULL,
    min_writer bigint NOT NULL,                    -- oldest code version that may write
    epoch bigint NOT NULL CHECK (epoch >= 0),      -- counts conservative repairs
    release_secret text COLLATE "C" NOT NULL,      -- key of the release keys' digest
    created_at text COLLATE "C" NOT NULL
);

-- Which server this ledger lives on. A promoted standby and a restored copy differ.
CREATE TABLE dpflow.server (
    one bigint PRIMARY KEY CHECK (one = 1),
    system_identifier text COLLATE "C" NOT NULL,
    timeline bigint NOT NULL CHECK (timeline >= 1),
    since text COLLATE "C" NOT NULL,
    writer text COLLATE "C" NOT NULL,
    because text COLLATE "C" NOT NULL
);

-- What a transaction locks before it reads; a new dataset has no other row.
CREATE TABLE dpflow.lockable (
    name text COLLATE "C" PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 200),
    turn bigint NOT NULL DEFAULT 0                 -- lets a role lock, not rename
) WITH (fillfactor = 50);

-- A stretch of a dataset's life under one set of guarantee-relevant policy fields.
CREATE TABLE dpflow.term (
    dataset text COLLATE "C" NOT NULL CHECK (length(dataset) BETWEEN 1 AND 200),
    number bigint NOT NULL CHECK (number >= 1),
    pinned text COLLATE "C" NOT NULL,              -- canonical JSON of the pinned fields
    policy_hash text COLLATE "C" NOT NULL CHECK (length(policy_hash) = 64),
    opened_at text COLLATE "C" NOT NULL,
    opened_by text COLLATE "C" NOT NULL,
    because text COLLATE "C" NOT NULL,
    declared text COLLATE "C",                     -- before any number was derived
    PRIMARY KEY (dataset, number)
);

-- One tally under one theorem.
CREATE TABLE dpflow.account (
    id text COLLATE "C" PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 700),
    dataset text COLLATE "C" NOT NULL,
    term bigint NOT NULL,
    kind text COLLATE "C" NOT NULL
        CHECK (kind IN ('dataset', 'flow', 'odometer', 'partition', 'population')),
    name text COLLATE "C" NOT NULL,                -- flow, partition or population
    rule text COLLATE "C" NOT NULL,                -- canonical JSON: theorem, numbers
    halt text COLLATE "C",                         -- odometer: reading that halts
    settled text COLLATE "C" NOT NULL,
    held text COLLATE "C" NOT NULL,
    seq bigint NOT NULL CHECK (seq >= 1),
    head text COLLATE "C" NOT NULL CHECK (length(head) = 64),  -- newest entry's hash
    state text COLLATE "C" NOT NULL CHECK (state IN ('open', 'frozen', 'overdrawn')),
    FOREIGN KEY (dataset, term) REFERENCES dpflow.term (dataset, number)
) WITH (fillfactor = 50);

-- The journal.
CREATE TABLE dpflow.entry (
    account text COLLATE "C" NOT NULL
        REFERENCES dpflow.account (id) DEFERRABLE INITIALLY DEFERRED,
    seq bigint NOT NULL CHECK (seq >= 1),
    kind text COLLATE "C" NOT NULL
        CHECK (kind IN ('open', 'reserve', 'settle', 'void', 'forfeit', 'refuse',
                        'draw', 'seal',                      -- a run reserved as a whole
                        'amend', 'prior', 'repair',          -- these only raise usage
                        'tighten', 'freeze', 'thaw')),
    reservation text COLLATE "C",
    amount text COLLATE "C" NOT NULL,              -- asked, posted or given back
    settled_after text COLLATE "C" NOT NULL,
    held_after text COLLATE "C" NOT NULL,
    run text COLLATE "C",                          -- run of the flow that is charged
    body text COLLATE "C" NOT NULL,                -- canonical JSON; never data
    at text COLLATE "C" NOT NULL,                  -- a label; no clock decides anything
    writer text COLLATE "C" NOT NULL,
    hash text COLLATE "C" NOT NULL CHECK (length(hash) = 64),
    PRIMARY KEY (account, seq),
    CHECK (reservation IS NOT NULL OR kind IN
           ('open', 'amend', 'prior', 'repair', 'tighten', 'freeze', 'thaw'))
);

-- One reserve and at most one end of it, on each account.
CREATE UNIQUE INDEX entry_reserved ON dpflow.entry (reservation, account)
    WHERE kind = 'reserve';
CREATE UNIQUE INDEX entry_closed ON dpflow.entry (reservation, account)
    WHERE kind IN ('settle', 'void', 'forfeit');
CREATE INDEX entry_forfeited ON dpflow.entry (account) WHERE kind = 'forfeit';

CREATE FUNCTION dpflow.refuse_change() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'integrity_constraint_violation';
END
$$;
CREATE TRIGGER entry_no_update BEFORE UPDATE ON dpflow.entry FOR EACH ROW
    EXECUTE FUNCTION dpflow.refuse_change('the journal is append-only');
CREATE TRIGGER entry_no_delete BEFORE DELETE ON dpflow.entry FOR EACH ROW
    EXECUTE FUNCTION dpflow.refuse_change('the journal is append-only');
CREATE TRIGGER entry_no_truncate BEFORE TRUNCATE ON dpflow.entry FOR EACH STATEMENT
    EXECUTE FUNCTION dpflow.refuse_change('the journal is append-only');

-- Only who may open terms may open an account again that was frozen or overdrawn.
CREATE FUNCTION dpflow.check_reopening() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF NOT has_table_privilege(current_user, 'dpflow.term', 'INSERT') THEN
        RAISE EXCEPTION 'only an officer may open account % again', OLD.id
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END
$$;
CREATE TRIGGER account_reopened BEFORE UPDATE ON dpflow.account FOR EACH ROW
    WHEN (OLD.state <> 'open' AND NEW.state <> OLD.state)
    EXECUTE FUNCTION dpflow.check_reopening();

-- The state of each charge over all its accounts.
CREATE TABLE dpflow.reservation (
    id text COLLATE "C" PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 200),
    fingerprint text COLLATE "C" NOT NULL CHECK (length(fingerprint) = 64),
    owner text COLLATE "C" NOT NULL,               -- the process that reserved
    state text COLLATE "C" NOT NULL
        CHECK (state IN ('open', 'settled', 'void', 'forfeited')),
    accounts text COLLATE "C" NOT NULL,            -- JSON array of account ids
    cost text COLLATE "C" NOT NULL,                -- JSON description
    step text COLLATE "C" NOT NULL,
    release_key text COLLATE "C",
    body text COLLATE "C" NOT NULL,
    at text COLLATE "C" NOT NULL,
    datasets text COLLATE "C" NOT NULL             -- what to lock before it ends
) WITH (fillfactor = 80);
CREATE INDEX reservation_open ON dpflow.reservation (id) WHERE state = 'open';
-- A charge ends once.
CREATE TRIGGER reservation_ended BEFORE UPDATE ON dpflow.reservation FOR EACH ROW
    WHEN (OLD.state <> 'open')
    EXECUTE FUNCTION dpflow.refuse_change('a charge that has ended stays as it is');

-- Which flow runs, subflows and their parents, met a refusal.
CREATE TABLE dpflow.refused (
    run text COLLATE "C" NOT NULL,
    account text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    charged bigint NOT NULL CHECK (charged IN (0, 1)),  -- 1: run of the charged flow
    PRIMARY KEY (run, account, seq),
    FOREIGN KEY (account, seq) REFERENCES dpflow.entry (account, seq)
);

-- The largest amount that each step was ever granted: tells a mistyped cost
-- (refused) from a budget that ran out (exhausted).
CREATE TABLE dpflow.granted (
    account text COLLATE "C" NOT NULL REFERENCES dpflow.account (id),
    step text COLLATE "C" NOT NULL,
    amount text COLLATE "C" NOT NULL,
    PRIMARY KEY (account, step)
);

-- Settled outputs, replayed at no cost; a claim marks the one that is being made.
CREATE TABLE dpflow.release (
    release_key text COLLATE "C" PRIMARY KEY CHECK (length(release_key) = 64),
    key_text text COLLATE "C" NOT NULL,            -- for people
    dataset text COLLATE "C" NOT NULL,
    step text COLLATE "C" NOT NULL,
    cost text COLLATE "C" NOT NULL,
    reservation text COLLATE "C" NOT NULL REFERENCES dpflow.reservation (id),
    owner text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL CHECK (state IN ('claimed', 'settled')),
    value text COLLATE "C",                        -- typed JSON; NULL: not replayable
    digest text COLLATE "C",                       -- sha256 of the value
    at text COLLATE "C" NOT NULL
) WITH (fillfactor = 80);
CREATE TRIGGER release_kept BEFORE DELETE ON dpflow.release FOR EACH ROW
    WHEN (OLD.state <> 'claimed')
    EXECUTE FUNCTION dpflow.refuse_change('a settled release is never deleted');

-- Heads of accounts that someone with the ledger's key has signed.
CREATE TABLE dpflow.checkpoint (
    account text COLLATE "C" NOT NULL REFERENCES dpflow.account (id),
    seq bigint NOT NULL CHECK (seq >= 1),
    hash text COLLATE "C" NOT NULL CHECK (length(hash) = 64),
    signature text COLLATE "C" NOT NULL CHECK (length(signature) = 64),
    at text COLLATE "C" NOT NULL,
    writer text COLLATE "C" NOT NULL,
    PRIMARY KEY (account, seq)
);

REVOKE ALL ON ALL TABLES IN SCHEMA dpflow FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA dpflow FROM PUBLIC;
