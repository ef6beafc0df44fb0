-- Which environment a ledger serves; NULL serves any.
ALTER TABLE dpflow.ledger ADD COLUMN environment text COLLATE "C";

UPDATE dpflow.ledger SET schema_version = 3, min_writer = 3;
