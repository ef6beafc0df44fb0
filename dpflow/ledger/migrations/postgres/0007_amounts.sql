-- Amounts that are no vectors of non-negative integers do not get into the tables.
ALTER TABLE dpflow.account ADD CONSTRAINT account_amounts CHECK (
    settled ~ '^\[[0-9]+(,[0-9]+)*\]$' AND held ~ '^\[[0-9]+(,[0-9]+)*\]$');
ALTER TABLE dpflow.entry ADD CONSTRAINT entry_amounts CHECK (
    amount ~ '^\[[0-9]+(,[0-9]+)*\]$' AND settled_after ~ '^\[[0-9]+(,[0-9]+)*\]$'
    AND held_after ~ '^\[[0-9]+(,[0-9]+)*\]$');
ALTER TABLE dpflow.granted ADD CONSTRAINT granted_amounts CHECK (
    amount ~ '^\[[0-9]+(,[0-9]+)*\]$');

-- Older code writes only what the checks allow, so it may go on.
UPDATE dpflow.ledger SET schema_version = 7;
