-- Which thresholds of a policy an account has reached; each is told once.
CREATE TABLE dpflow.alert (
    account text COLLATE "C" NOT NULL REFERENCES dpflow.account (id),
    threshold text COLLATE "C" NOT NULL,
    at text COLLATE "C" NOT NULL,
    PRIMARY KEY (account, threshold)
);
REVOKE ALL ON dpflow.alert FROM PUBLIC;

UPDATE dpflow.ledger SET schema_version = 4, min_writer = 4;
