-- Flow runs that hold their whole worst case before the first step.
ALTER TABLE dpflow.reservation DROP CONSTRAINT reservation_state_check;
ALTER TABLE dpflow.reservation ADD CONSTRAINT reservation_state_check
    CHECK (state IN ('open', 'settled', 'void', 'forfeited', 'sealed'));

-- Which reservations hold a whole run, and which run; a run may have several in turn.
CREATE TABLE dpflow.preflight (
    reservation text COLLATE "C" PRIMARY KEY REFERENCES dpflow.reservation (id),
    owner text COLLATE "C" NOT NULL,               -- the process that runs it now
    run text COLLATE "C" NOT NULL,
    number bigint NOT NULL CHECK (number >= 1),
    epoch bigint NOT NULL,                         -- the ledger's, when it was made
    UNIQUE (run, number)
);
REVOKE ALL ON dpflow.preflight FROM PUBLIC;

-- A seal is an end like the others: each charge has one on each account.
DROP INDEX dpflow.entry_closed;
CREATE UNIQUE INDEX entry_closed ON dpflow.entry (reservation, account)
    WHERE kind IN ('settle', 'void', 'forfeit', 'seal');
CREATE INDEX entry_drawn ON dpflow.entry (reservation, account) WHERE kind = 'draw';

UPDATE dpflow.ledger SET schema_version = 5, min_writer = 5;
