-- Which thresholds of a policy an account has reached; each is told once.
CREATE TABLE alert (
    account TEXT NOT NULL REFERENCES account (id),
    threshold TEXT NOT NULL,
    at TEXT NOT NULL,
    PRIMARY KEY (account, threshold)
) STRICT, WITHOUT ROWID;

UPDATE ledger SET schema_version = 4, min_writer = 4;
