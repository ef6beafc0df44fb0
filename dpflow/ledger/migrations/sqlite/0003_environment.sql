-- Which environment a ledger serves; NULL serves any, as older ledgers do.
ALTER TABLE ledger ADD COLUMN environment TEXT;

-- Older code takes rules from policy files and opens terms without a lifetime.
UPDATE ledger SET schema_version = 3, min_writer = 3;
