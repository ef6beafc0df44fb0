-- Tables of a ledger, with the same names in both databases.
--
-- INTEGER and TEXT become bigint and text COLLATE "C" on PostgreSQL, which knows no
-- STRICT and WITHOUT ROWID. Amounts are JSON arrays of exact integers: SQL never computes
-- with them.

-- name: tables
CREATE TABLE ledger (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    secret TEXT NOT NULL,
    environment TEXT,
    created_at TEXT NOT NULL,
    complete INTEGER NOT NULL,
    moving_to TEXT,
    moved_to TEXT
) STRICT;
CREATE TABLE dataset (
    name TEXT PRIMARY KEY,
    term INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    frozen TEXT,
    epoch INTEGER NOT NULL,
    repaired_at INTEGER NOT NULL,
    number INTEGER NOT NULL,
    hash TEXT NOT NULL,
    mark TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE term (
    dataset TEXT NOT NULL,
    number INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (dataset, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE source (
    name TEXT PRIMARY KEY,
    dataset TEXT NOT NULL,
    population TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE account (
    id TEXT PRIMARY KEY,
    settled TEXT NOT NULL,
    held TEXT NOT NULL,
    version INTEGER NOT NULL,
    alerted TEXT,
    overdrawn INTEGER NOT NULL,
    mark TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE charge (
    id TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    owner TEXT NOT NULL,
    login TEXT,
    step TEXT NOT NULL,
    flow TEXT,
    run TEXT,
    release_key TEXT,
    request TEXT NOT NULL,
    amounts TEXT NOT NULL,
    realised TEXT,
    mark TEXT NOT NULL
) STRICT;
CREATE TABLE charge_dataset (
    dataset TEXT NOT NULL,
    reserve_number INTEGER NOT NULL,
    charge TEXT NOT NULL,
    end_number INTEGER,
    flow TEXT,
    step TEXT NOT NULL,
    PRIMARY KEY (dataset, reserve_number)
) STRICT, WITHOUT ROWID;
CREATE TABLE release (
    key TEXT PRIMARY KEY,
    key_text TEXT NOT NULL,
    dataset TEXT NOT NULL,
    step TEXT NOT NULL,
    charge TEXT NOT NULL,
    state TEXT NOT NULL,
    digest TEXT,
    arguments TEXT,
    shape TEXT,
    value TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE run (
    id TEXT NOT NULL,
    dataset TEXT NOT NULL,
    flow TEXT,
    refusals INTEGER NOT NULL,
    halted TEXT,
    completed INTEGER,
    PRIMARY KEY (id, dataset)
) STRICT, WITHOUT ROWID;
CREATE TABLE evidence (
    dataset TEXT NOT NULL,
    term INTEGER NOT NULL,
    digest TEXT NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (dataset, term, digest)
) STRICT, WITHOUT ROWID;
CREATE TABLE journal (
    dataset TEXT NOT NULL,
    number INTEGER NOT NULL,
    at TEXT NOT NULL,
    writer TEXT NOT NULL,
    kind TEXT NOT NULL,
    command TEXT NOT NULL,
    charge TEXT,
    step TEXT,
    flow TEXT,
    run TEXT,
    postings TEXT NOT NULL,
    body TEXT NOT NULL,
    hash TEXT NOT NULL,
    PRIMARY KEY (dataset, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE people_store (
    account TEXT PRIMARY KEY,
    first TEXT NOT NULL,
    newest TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX charge_of_dataset ON charge_dataset (charge);
CREATE INDEX charge_dataset_flow ON charge_dataset (dataset, flow, reserve_number);
CREATE INDEX charge_dataset_step ON charge_dataset (dataset, step, reserve_number);
CREATE INDEX charge_run ON charge (run) WHERE run IS NOT NULL;
CREATE INDEX charge_open ON charge (id) WHERE state = 'open';
CREATE INDEX journal_run ON journal (run) WHERE kind = 'refuse';
CREATE INDEX journal_rare ON journal (kind, dataset, number)
    WHERE kind NOT IN ('reserve', 'settle', 'void', 'pay');
CREATE INDEX journal_command ON journal (dataset, command)
    WHERE kind NOT IN ('reserve', 'settle', 'void', 'forfeit');
CREATE INDEX release_step ON release (dataset, step);
