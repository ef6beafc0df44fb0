BEGIN TRANSACTION;
CREATE TABLE account (
    id TEXT PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 700),
    dataset TEXT NOT NULL,
    term INTEGER NOT NULL,
    kind TEXT NOT NULL
        CHECK (kind IN ('dataset', 'flow', 'odometer', 'partition', 'population')),
    name TEXT NOT NULL,                            -- flow, partition or population
    rule TEXT NOT NULL,                            -- canonical JSON: theorem, numbers
    halt TEXT,                                     -- odometer: reading that halts
    settled TEXT NOT NULL,
    held TEXT NOT NULL,
    seq INTEGER NOT NULL CHECK (seq >= 1),
    head TEXT NOT NULL CHECK (length(head) = 64),  -- hash of the newest entry
    state TEXT NOT NULL CHECK (state IN ('open', 'frozen', 'overdrawn')),
    FOREIGN KEY (dataset, term) REFERENCES term (dataset, number)
) STRICT, WITHOUT ROWID;
INSERT INTO "account" VALUES('shop#1','shop',1,'dataset','','{"delta":"0.000001","epsilon":"1","role":"filter","theorem":"gaussian"}',NULL,'[5000000000000000000000000000000000]','[2500000000000000000000000000000000]',7,'566e1d6393b0b5df3c1f5443ac5dd6a37b4261974cf9f52327ccec977f1e348a','open');
INSERT INTO "account" VALUES('shop#1/flow/weekly','shop',1,'flow','weekly','{"delta":"0.000001","epsilon":"1","role":"filter","theorem":"gaussian"}',NULL,'[5000000000000000000000000000000000]','[2500000000000000000000000000000000]',6,'7815dfa69dbc1dda014ed0adb413f7b95a76064ba7a089335a1b8fe8b9f1075d','open');
INSERT INTO "account" VALUES('shop#1/odometer/weekly','shop',1,'odometer','weekly','{"delta":"0.000001","order":"10.7","role":"odometer","theorem":"renyi"}','3','[26750000000000000000000000000000000,0]','[13375000000000000000000000000000000,0]',7,'aa4a29871c283e1d469071efadef81299d3cbd7c2f355a348f2892f58fce3879','open');
CREATE TABLE entry (
    account TEXT NOT NULL REFERENCES account (id) DEFERRABLE INITIALLY DEFERRED,
    seq INTEGER NOT NULL CHECK (seq >= 1),
    kind TEXT NOT NULL
        CHECK (kind IN ('open', 'reserve', 'settle', 'void', 'forfeit', 'refuse')),
    reservation TEXT,
    amount TEXT NOT NULL,                          -- asked, posted or given back
    settled_after TEXT NOT NULL,
    held_after TEXT NOT NULL,
    run TEXT,                                      -- run of the flow that is charged
    body TEXT NOT NULL,                            -- canonical JSON; never data
    at TEXT NOT NULL,                              -- a label; no clock decides anything
    writer TEXT NOT NULL,
    hash TEXT NOT NULL CHECK (length(hash) = 64),
    PRIMARY KEY (account, seq),
    CHECK (kind = 'open' OR reservation IS NOT NULL)
) STRICT, WITHOUT ROWID;
INSERT INTO "entry" VALUES('shop#1',1,'open',NULL,'[0]','[0]','[0]',NULL,'{"dataset":"shop","halt":null,"kind":"dataset","name":"","rule":{"delta":"0.000001","epsilon":"1","role":"filter","theorem":"gaussian"},"term":1}','2026-11-21T15:38:22.793+00:00','worker@host','eb54fdd75899dc1ab3ca7ab101ca7d2121b2fd9ba9b3d36d3e7984124de9be17');
INSERT INTO "entry" VALUES('shop#1',2,'reserve','r0','[2500000000000000000000000000000000]','[0]','[2500000000000000000000000000000000]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","release_key":"week/0","step":"count"}','2026-11-21T15:38:22.794+00:00','worker@host','78d5cf54bf4124a9192e0ef889cedaca88c14545b16ec11016da529ebb73365f');
INSERT INTO "entry" VALUES('shop#1',3,'reserve','r1','[2500000000000000000000000000000000]','[0]','[5000000000000000000000000000000000]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","release_key":"week/1","step":"count"}','2026-11-21T15:38:22.800+00:00','worker@host','241b4eaaae6b3f0a6ec16832dcb0e7ec4cc28de42c8f0d857f19cad5b9d8fac1');
INSERT INTO "entry" VALUES('shop#1',4,'reserve','r2','[2500000000000000000000000000000000]','[0]','[7500000000000000000000000000000000]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","release_key":"week/2","step":"count"}','2026-11-21T15:38:22.807+00:00','worker@host','acac244db0f0692d8f2bbebeb96b8078206179bb4610d3d51f28fbc9559465f3');
INSERT INTO "entry" VALUES('shop#1',5,'settle','r0','[2500000000000000000000000000000000]','[2500000000000000000000000000000000]','[5000000000000000000000000000000000]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","outcome":"completed","release_key":"week/0","step":"count"}','2026-11-21T15:38:22.809+00:00','worker@host','d6e8b68ff5ac03e8e2a379d6d6ef5b110d06252970903f30668e1cf2435adbee');
INSERT INTO "entry" VALUES('shop#1',6,'settle','r1','[2500000000000000000000000000000000]','[5000000000000000000000000000000000]','[2500000000000000000000000000000000]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","outcome":"failed","release_key":"week/1","step":"count"}','2026-11-21T15:38:22.812+00:00','worker@host','3f3eb4b1c91d5149942ad2676c2cc5143083e3ca9b93b303cf3f3f9e60d2c844');
INSERT INTO "entry" VALUES('shop#1',7,'refuse','r9','[100000000000000000000000000000000000000]','[5000000000000000000000000000000000]','[2500000000000000000000000000000000]','run1','{"asked":{"mu_squared":"100"},"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"0.1"},"fits":"With 45.5 times its noise it would still fit: Gaussian(sensitivity=1, sigma=4.55).","flow":"weekly","gate":"dataset","left":{"mu_squared":"0.048528963825259556505108548741542287"},"message":"step ''count'' of flow ''weekly'' was refused by the gaussian filter of dataset ''shop'': it asked for mu_squared 100, mu_squared 0.04852 is left of (epsilon 1, delta 1e-6). With 45.5 times its noise it would still fit: Gaussian(sensitivity=1, sigma=4.55). Nothing was charged for it.","refusal":"BudgetRefused","release_key":"week/9","step":"count","theorem":"gaussian"}','2026-11-21T15:38:22.820+00:00','worker@host','566e1d6393b0b5df3c1f5443ac5dd6a37b4261974cf9f52327ccec977f1e348a');
INSERT INTO "entry" VALUES('shop#1/flow/weekly',1,'open',NULL,'[0]','[0]','[0]',NULL,'{"dataset":"shop","halt":null,"kind":"flow","name":"weekly","rule":{"delta":"0.000001","epsilon":"1","role":"filter","theorem":"gaussian"},"term":1}','2026-11-21T15:38:22.793+00:00','worker@host','fb1346a38107b2adedbc7c446179628b2268e232ccdcd547329d12de0068d392');
INSERT INTO "entry" VALUES('shop#1/flow/weekly',2,'reserve','r0','[2500000000000000000000000000000000]','[0]','[2500000000000000000000000000000000]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","release_key":"week/0","step":"count"}','2026-11-21T15:38:22.795+00:00','worker@host','7716a85209ad59ffb6472c3f6b27bdb8e009d4af0eea14ad17005dec13179aae');
INSERT INTO "entry" VALUES('shop#1/flow/weekly',3,'reserve','r1','[2500000000000000000000000000000000]','[0]','[5000000000000000000000000000000000]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","release_key":"week/1","step":"count"}','2026-11-21T15:38:22.800+00:00','worker@host','c3b1391857448a65fbe38f0d87b090e754f538ec5d2a4b9d8987d9504cf66bbf');
INSERT INTO "entry" VALUES('shop#1/flow/weekly',4,'reserve','r2','[2500000000000000000000000000000000]','[0]','[7500000000000000000000000000000000]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","release_key":"week/2","step":"count"}','2026-11-21T15:38:22.807+00:00','worker@host','9a6c3a3db3552277335886ea6686767cee9bdc5f8c0139c2a2b67e6eec91f5ac');
INSERT INTO "entry" VALUES('shop#1/flow/weekly',5,'settle','r0','[2500000000000000000000000000000000]','[2500000000000000000000000000000000]','[5000000000000000000000000000000000]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","outcome":"completed","release_key":"week/0","step":"count"}','2026-11-21T15:38:22.810+00:00','worker@host','f1a772abf6f08d57bf90ad7f0873bdeeb1e815d14321bafd49a4b9269aa50741');
INSERT INTO "entry" VALUES('shop#1/flow/weekly',6,'settle','r1','[2500000000000000000000000000000000]','[5000000000000000000000000000000000]','[2500000000000000000000000000000000]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","outcome":"failed","release_key":"week/1","step":"count"}','2026-11-21T15:38:22.812+00:00','worker@host','7815dfa69dbc1dda014ed0adb413f7b95a76064ba7a089335a1b8fe8b9f1075d');
INSERT INTO "entry" VALUES('shop#1/odometer/weekly',1,'open',NULL,'[0,0]','[0,0]','[0,0]',NULL,'{"dataset":"shop","halt":"3","kind":"odometer","name":"weekly","rule":{"delta":"0.000001","order":"10.7","role":"odometer","theorem":"renyi"},"term":1}','2026-11-21T15:38:22.794+00:00','worker@host','df8068165c875bdc766788e98b012e446cdd177512ca3d75a1aa65ae4828052a');
INSERT INTO "entry" VALUES('shop#1/odometer/weekly',2,'reserve','r0','[13375000000000000000000000000000000,0]','[0,0]','[13375000000000000000000000000000000,0]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","release_key":"week/0","step":"count"}','2026-11-21T15:38:22.795+00:00','worker@host','d65a933c47a9a7417e488dca6e59a6e0c59ba8a9d9c39eca77e370650d8ca8ac');
INSERT INTO "entry" VALUES('shop#1/odometer/weekly',3,'reserve','r1','[13375000000000000000000000000000000,0]','[0,0]','[26750000000000000000000000000000000,0]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","release_key":"week/1","step":"count"}','2026-11-21T15:38:22.800+00:00','worker@host','832f004ddc293991a5d43f4687134e781174e2fe17d0229522bc21fc5457e1cd');
INSERT INTO "entry" VALUES('shop#1/odometer/weekly',4,'reserve','r2','[13375000000000000000000000000000000,0]','[0,0]','[40125000000000000000000000000000000,0]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","release_key":"week/2","step":"count"}','2026-11-21T15:38:22.808+00:00','worker@host','1d37fd29427aac5c5be16fcba5df50b168b537bd746654d6188f53e25ec30e9f');
INSERT INTO "entry" VALUES('shop#1/odometer/weekly',5,'settle','r0','[13375000000000000000000000000000000,0]','[13375000000000000000000000000000000,0]','[26750000000000000000000000000000000,0]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","outcome":"completed","release_key":"week/0","step":"count"}','2026-11-21T15:38:22.810+00:00','worker@host','281de30b99f968ad414f701aab3bb2fa322715d5bc733513471a5f78c7d3dee8');
INSERT INTO "entry" VALUES('shop#1/odometer/weekly',6,'settle','r1','[13375000000000000000000000000000000,0]','[26750000000000000000000000000000000,0]','[13375000000000000000000000000000000,0]','run1','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","outcome":"failed","release_key":"week/1","step":"count"}','2026-11-21T15:38:22.812+00:00','worker@host','a708c9802d8b18bf1d5186cdf82578a74c5d205e4537e7c442bdb5d746e0577f');
INSERT INTO "entry" VALUES('shop#1/odometer/weekly',7,'refuse','r9','[535000000000000000000000000000000000000,0]','[26750000000000000000000000000000000,0]','[13375000000000000000000000000000000,0]','run1','{"asked":{"mu_squared":"100"},"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"0.1"},"fits":"With 45.5 times its noise it would still fit: Gaussian(sensitivity=1, sigma=4.55).","flow":"weekly","gate":"dataset","left":{"mu_squared":"0.048528963825259556505108548741542287"},"message":"step ''count'' of flow ''weekly'' was refused by the gaussian filter of dataset ''shop'': it asked for mu_squared 100, mu_squared 0.04852 is left of (epsilon 1, delta 1e-6). With 45.5 times its noise it would still fit: Gaussian(sensitivity=1, sigma=4.55). Nothing was charged for it.","refusal":"BudgetRefused","release_key":"week/9","step":"count","theorem":"gaussian"}','2026-11-21T15:38:22.820+00:00','worker@host','aa4a29871c283e1d469071efadef81299d3cbd7c2f355a348f2892f58fce3879');
CREATE TABLE granted (
    account TEXT NOT NULL REFERENCES account (id),
    step TEXT NOT NULL,
    amount TEXT NOT NULL,
    PRIMARY KEY (account, step)
) STRICT, WITHOUT ROWID;
INSERT INTO "granted" VALUES('shop#1','count','[2500000000000000000000000000000000]');
INSERT INTO "granted" VALUES('shop#1/flow/weekly','count','[2500000000000000000000000000000000]');
INSERT INTO "granted" VALUES('shop#1/odometer/weekly','count','[13375000000000000000000000000000000,0]');
CREATE TABLE ledger (
    one INTEGER PRIMARY KEY CHECK (one = 1),       -- exactly one row
    ledger_id TEXT NOT NULL,
    schema_version INTEGER NOT NULL,
    min_writer INTEGER NOT NULL,                   -- oldest code version that may write
    epoch INTEGER NOT NULL CHECK (epoch >= 0),     -- counts conservative repairs
    release_secret TEXT NOT NULL,                  -- key of the release keys' digest
    created_at TEXT NOT NULL
) STRICT;
INSERT INTO "ledger" VALUES(1,'a82e2bbf15da4c948f9c116438bf6f50',1,1,0,'5aa58819a125ef10aea112118121b29168b9469ca4990d8c47e203bdc81df740','2026-11-21T15:38:22.737+00:00');
CREATE TABLE refused (
    run TEXT NOT NULL,
    account TEXT NOT NULL,
    seq INTEGER NOT NULL,
    charged INTEGER NOT NULL CHECK (charged IN (0, 1)),  -- 1: run of the charged flow
    PRIMARY KEY (run, account, seq),
    FOREIGN KEY (account, seq) REFERENCES entry (account, seq)
) STRICT, WITHOUT ROWID;
INSERT INTO "refused" VALUES('run1','shop#1',7,1);
INSERT INTO "refused" VALUES('run1','shop#1/odometer/weekly',7,1);
CREATE TABLE release (
    release_key TEXT PRIMARY KEY CHECK (length(release_key) = 64),
    key_text TEXT NOT NULL,                        -- for people
    dataset TEXT NOT NULL,
    step TEXT NOT NULL,
    cost TEXT NOT NULL,
    reservation TEXT NOT NULL REFERENCES reservation (id),
    owner TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('claimed', 'settled')),
    value TEXT,                                    -- typed JSON; NULL: not replayable
    digest TEXT,                                   -- sha256 of the value
    at TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "release" VALUES('0000000000000000000000000000000000000000000000000000000000000000','week/0','shop','count','{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"}','r0','3969e848b6244c1b8cddca65aba14aaa','settled','{"int": 1}','7bd12387f7bf42daa9b1666993434c9cfb41e9720e4f89838d7195b213b39b58','2026-11-21T15:38:22.795+00:00');
INSERT INTO "release" VALUES('0000000000000000000000000000000000000000000000000000000000000002','week/2','shop','count','{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"}','r2','3969e848b6244c1b8cddca65aba14aaa','claimed',NULL,NULL,'2026-11-21T15:38:22.808+00:00');
CREATE TABLE reservation (
    id TEXT PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 200),
    fingerprint TEXT NOT NULL CHECK (length(fingerprint) = 64),
    owner TEXT NOT NULL,                           -- the process that reserved
    state TEXT NOT NULL
        CHECK (state IN ('open', 'settled', 'void', 'forfeited')),
    accounts TEXT NOT NULL,                        -- JSON array of account ids
    cost TEXT NOT NULL,                            -- JSON description
    step TEXT NOT NULL,
    release_key TEXT,
    body TEXT NOT NULL,
    at TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO "reservation" VALUES('r0','0e0d7656ddab7d8ab7cf2527b0409187cb86c0222954c0733eeee8868f3243f1','3969e848b6244c1b8cddca65aba14aaa','settled','["shop#1","shop#1/flow/weekly","shop#1/odometer/weekly"]','{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"}','count','0000000000000000000000000000000000000000000000000000000000000000','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","release_key":"week/0","step":"count"}','2026-11-21T15:38:22.794+00:00');
INSERT INTO "reservation" VALUES('r1','9cad6e3358c90e20d3cd237c858937d43fcf082e88ecd15cdabca4171954b3ea','3969e848b6244c1b8cddca65aba14aaa','settled','["shop#1","shop#1/flow/weekly","shop#1/odometer/weekly"]','{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"}','count','0000000000000000000000000000000000000000000000000000000000000001','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","release_key":"week/1","step":"count"}','2026-11-21T15:38:22.800+00:00');
INSERT INTO "reservation" VALUES('r2','6a669224f726f6642a8b6520a57bf9846024384cc72a329f237ad55d99bed634','3969e848b6244c1b8cddca65aba14aaa','open','["shop#1","shop#1/flow/weekly","shop#1/odometer/weekly"]','{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"}','count','0000000000000000000000000000000000000000000000000000000000000002','{"cost":{"mechanism":"Gaussian","sensitivity":"1","sigma":"20"},"flow":"weekly","release_key":"week/2","step":"count"}','2026-11-21T15:38:22.807+00:00');
CREATE TABLE term (
    dataset TEXT NOT NULL CHECK (length(dataset) BETWEEN 1 AND 200),
    number INTEGER NOT NULL CHECK (number >= 1),
    pinned TEXT NOT NULL,                          -- canonical JSON of the pinned fields
    policy_hash TEXT NOT NULL CHECK (length(policy_hash) = 64),
    opened_at TEXT NOT NULL,
    opened_by TEXT NOT NULL,
    because TEXT NOT NULL,
    PRIMARY KEY (dataset, number)
) STRICT, WITHOUT ROWID;
INSERT INTO "term" VALUES('shop',1,'{"budget":{"delta":"0.000001","epsilon":"1"},"dataset":"shop","filter":{"delta":"0.000001","epsilon":"1","theorem":"gaussian"},"flows":{"weekly":{"delta":"0.000001","epsilon":"1","filter":{"delta":"0.000001","epsilon":"1","theorem":"gaussian"},"halt_at_epsilon":"3","odometer":{"delta":"0.000001","order":"10.7","theorem":"renyi"}}},"odometer":{"delta":"0.000001","order":"29.1","theorem":"renyi"},"other_flows":"refuse","relation":"add-or-remove","unit":"customer"}','15b1ca6acb8589687621a43927de07feb9b61b953971dfa35c240d633157f152','2026-11-21T15:38:22.792+00:00','worker@host','first decision');
CREATE UNIQUE INDEX entry_reserved ON entry (reservation, account)
    WHERE kind = 'reserve';
CREATE UNIQUE INDEX entry_closed ON entry (reservation, account)
    WHERE kind IN ('settle', 'void', 'forfeit');
CREATE INDEX entry_forfeited ON entry (account) WHERE kind = 'forfeit';
CREATE TRIGGER entry_no_update BEFORE UPDATE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER entry_no_delete BEFORE DELETE ON entry
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER entry_no_replace BEFORE INSERT ON entry
WHEN EXISTS (SELECT 1 FROM entry WHERE account = NEW.account AND seq = NEW.seq)
BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE INDEX reservation_open ON reservation (id) WHERE state = 'open';
COMMIT;
