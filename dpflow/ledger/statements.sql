-- Every statement of the ledger, by name. Parameters are :named; the adapter of each
-- database rewrites them. Nothing else in dpflow holds SQL (migrations apart).
-- A result column that bears the name of a parameter must equal it, unless it is NULL.
-- Times are labels and clocks jump: entries are ordered by their account's sequence, and
-- those of several accounts by their position over all accounts.

-- name: savepoint
SAVEPOINT request;

-- name: rollback_to_savepoint
ROLLBACK TO SAVEPOINT request;

-- name: release_savepoint
RELEASE SAVEPOINT request;

-- name: read_ledger
SELECT ledger_id, schema_version, min_writer, epoch FROM ledger;

-- name: read_secret
SELECT release_secret FROM ledger;

-- name: read_environment
SELECT environment FROM ledger;

-- name: create_ledger
INSERT INTO ledger
    (one, ledger_id, schema_version, min_writer, epoch, release_secret, created_at,
     environment)
VALUES
    (1, :ledger_id, :schema_version, :min_writer, 0, :release_secret, :at,
     :environment);

-- name: newest_term
SELECT dataset, number, pinned, declared, policy_hash, opened_at, opened_by, because
FROM term WHERE dataset = :dataset ORDER BY number DESC LIMIT 1;

-- name: list_terms
SELECT dataset, number, pinned, declared, policy_hash, opened_at, opened_by, because
FROM term WHERE dataset = :dataset ORDER BY number;

-- name: open_term
INSERT INTO term
    (dataset, number, pinned, declared, policy_hash, opened_at, opened_by, because)
VALUES
    (:dataset, :number, :pinned, :declared, :policy_hash, :at, :writer, :because);

-- name: tighten_term
UPDATE term
SET pinned = :pinned, declared = :declared, policy_hash = :policy_hash
WHERE dataset = :dataset AND number = :number;

-- name: read_account
SELECT id, dataset, term, kind, name, rule, halt, settled, held, seq, head, state
FROM account WHERE id = :id;

-- name: list_accounts
SELECT id, dataset, term, kind, name, rule, halt, settled, held, seq, head, state
FROM account WHERE CAST(:dataset AS TEXT) IS NULL OR dataset = :dataset ORDER BY id;

-- name: open_account
INSERT INTO account
    (id, dataset, term, kind, name, rule, halt, settled, held, seq, head, state)
VALUES
    (:id, :dataset, :term, :kind, :name, :rule, :halt, :settled, :held, 1, :head, 'open');

-- name: move_account
UPDATE account
SET settled = :settled, held = :held, seq = :seq, head = :head, state = :state
WHERE id = :id AND seq = :before;

-- name: mark_account
UPDATE account
SET rule = :rule, halt = :halt, state = :state, seq = :seq, head = :head
WHERE id = :id AND seq = :seq - 1;

-- name: append_entry
INSERT INTO entry
    (account, seq, kind, reservation, amount, settled_after, held_after, run, body,
     at, writer, hash)
VALUES
    (:account, :seq, :kind, :reservation, :amount, :settled_after, :held_after, :run,
     :body, :at, :writer, :hash);

-- name: read_entry
SELECT account, seq, kind, reservation, amount, settled_after, held_after, run, body,
       at, writer, hash
FROM entry WHERE account = :account AND seq = :seq;

-- name: newest_entries
SELECT account, seq, kind, reservation, amount, settled_after, held_after, run, body,
       at, writer, hash
FROM entry WHERE account = :account ORDER BY seq DESC LIMIT 2;

-- name: entries_by_kind
SELECT kind, COUNT(*) AS entries FROM entry WHERE account = :account GROUP BY kind;

-- name: newest_of_kind
SELECT seq, hash, amount, body, settled_after, held_after, at FROM entry
WHERE account = :account AND kind = :kind ORDER BY seq DESC LIMIT 1;

-- name: marks_before
SELECT account, seq, kind, reservation, amount, settled_after, held_after, run, body,
       at, writer, hash,
       (SELECT before.hash FROM entry AS before
        WHERE before.account = entry.account AND before.seq = entry.seq - 1) AS previous
FROM entry
WHERE account = :account AND seq <= :upto
  AND kind IN ('open', 'tighten', 'freeze', 'thaw') ORDER BY seq;

-- name: bodies_of_kind
SELECT body FROM entry WHERE account = :account AND kind = :kind;

-- name: reserved_amount
SELECT account, seq, kind, reservation, amount, settled_after, held_after, run, body,
       at, writer, hash,
       (SELECT before.hash FROM entry AS before
        WHERE before.account = entry.account AND before.seq = entry.seq - 1) AS previous
FROM entry
WHERE account = :account AND reservation = :reservation AND kind = 'reserve';

-- name: draws_of_reservation
SELECT account, seq, kind, reservation, amount, settled_after, held_after, run, body,
       at, writer, hash,
       (SELECT before.hash FROM entry AS before
        WHERE before.account = entry.account AND before.seq = entry.seq - 1) AS previous
FROM entry
WHERE account = :account AND reservation = :reservation AND kind = 'draw' ORDER BY seq;

-- name: history
SELECT entry.account, entry.seq, entry.kind, entry.reservation, entry.amount,
       entry.settled_after, entry.held_after, entry.run, entry.body, entry.at,
       entry.writer, entry.hash
FROM account
JOIN entry ON entry.account = account.id AND entry.seq > account.seq - :limit
JOIN entry_order
    ON entry_order.account = entry.account AND entry_order.seq = entry.seq
WHERE (CAST(:dataset AS TEXT) IS NULL OR account.dataset = :dataset)
  AND (CAST(:account_kind AS TEXT) IS NULL OR account.kind = :account_kind)
ORDER BY entry_order.position DESC LIMIT :limit;

-- name: decisions
SELECT entry.account, entry.seq, entry.kind, entry.reservation, entry.amount,
       entry.settled_after, entry.held_after, entry.run, entry.body, entry.at,
       entry.writer, entry.hash
FROM entry
JOIN account ON account.id = entry.account
JOIN entry_order
    ON entry_order.account = entry.account AND entry_order.seq = entry.seq
WHERE (CAST(:dataset AS TEXT) IS NULL OR account.dataset = :dataset)
  AND (entry.kind IN ('tighten', 'freeze', 'thaw', 'forfeit', 'amend', 'prior', 'repair')
       OR (entry.kind = 'open' AND account.kind IN ('dataset', 'population')))
ORDER BY entry_order.position DESC;

-- name: refusals
SELECT entry.account, entry.seq, entry.reservation, entry.run, entry.body, entry.at,
       entry_order.position, account.dataset, account.term
FROM entry JOIN account ON account.id = entry.account
JOIN entry_order
    ON entry_order.account = entry.account AND entry_order.seq = entry.seq
WHERE entry.kind = 'refuse' ORDER BY entry_order.position DESC LIMIT :limit;

-- name: reserved_since
SELECT entry.body, entry_order.position
FROM entry_order
JOIN entry ON entry.account = entry_order.account AND entry.seq = entry_order.seq
WHERE entry_order.position > :above AND entry.account = :account
  AND entry.kind = 'reserve'
ORDER BY entry_order.position LIMIT :limit;

-- name: note_refused
INSERT INTO refused (run, account, seq, charged)
VALUES (:run, :account, :seq, :charged);

-- name: refusals_of_run
SELECT entry.account, entry.seq, entry.body, account.dataset
FROM refused
JOIN entry ON entry.account = refused.account AND entry.seq = refused.seq
JOIN account ON account.id = entry.account
JOIN entry_order
    ON entry_order.account = entry.account AND entry_order.seq = entry.seq
WHERE refused.run = :run ORDER BY entry_order.position;

-- name: refused_runs
SELECT DISTINCT run FROM refused;

-- name: halting_accounts
SELECT DISTINCT refused.account FROM refused
JOIN account ON account.id = refused.account
WHERE refused.run = :run AND refused.charged = 1 AND account.kind = 'odometer';

-- name: forfeits_of_account
-- As a range: for an equality, SQLite reads the account's whole journal instead of the
-- index of its few forfeits.
SELECT amount FROM entry
WHERE kind = 'forfeit' AND account >= :account AND account <= :account;

-- name: read_reservation
SELECT r.id, r.fingerprint, COALESCE(p.owner, r.owner) AS owner, r.state, r.datasets,
       r.accounts, r.cost, r.step, r.release_key, r.body, r.at, p.run
FROM reservation r LEFT JOIN preflight p ON p.reservation = r.id WHERE r.id = :id;

-- name: open_reservations
SELECT r.id, r.fingerprint, COALESCE(p.owner, r.owner) AS owner, r.state, r.datasets,
       r.accounts, r.cost, r.step, r.release_key, r.body, r.at, p.run
FROM reservation r LEFT JOIN preflight p ON p.reservation = r.id
WHERE r.state = 'open' ORDER BY r.at, r.id;

-- name: preflight_of_run
SELECT r.id, r.fingerprint, p.owner, r.datasets, r.accounts, r.body, p.run, p.number,
       CASE WHEN p.epoch = l.epoch THEN r.state ELSE 'repaired' END AS state
FROM preflight p JOIN reservation r ON r.id = p.reservation CROSS JOIN ledger l
WHERE p.run = :run ORDER BY p.number DESC LIMIT 1;

-- name: open_preflight
INSERT INTO preflight (reservation, owner, run, number, epoch)
SELECT :reservation, :owner, :run, :number, epoch FROM ledger;

-- name: adopt_preflight
UPDATE preflight SET owner = :owner WHERE reservation = :reservation;

-- name: open_reservation
INSERT INTO reservation
    (id, fingerprint, owner, state, datasets, accounts, cost, step, release_key, body,
     at)
VALUES
    (:id, :fingerprint, :owner, 'open', :datasets, :accounts, :cost, :step,
     :release_key, :body, :at);

-- name: close_reservation
UPDATE reservation SET state = :state WHERE id = :id AND state = 'open';

-- name: read_granted
SELECT amount FROM granted WHERE account = :account AND step = :step;

-- name: note_granted
INSERT INTO granted (account, step, amount) VALUES (:account, :step, :amount)
ON CONFLICT (account, step) DO UPDATE SET amount = excluded.amount;

-- name: list_releases
SELECT r.release_key, r.key_text, r.dataset, r.step, r.cost, r.state, r.digest, r.at,
       length(r.value) AS size, charge.body AS charge,
       (SELECT min(e.body) FROM entry e
        WHERE e.reservation = r.reservation AND e.kind = 'settle'
          AND e.kind IN ('settle', 'void', 'forfeit', 'seal')) AS settled
FROM release r LEFT JOIN reservation charge ON charge.id = r.reservation
ORDER BY r.at DESC, r.release_key;

-- name: forget_release
UPDATE release SET value = NULL
WHERE release_key = :release_key AND digest = :digest AND state = 'settled'
  AND value IS NOT NULL;

-- name: note_alert
INSERT INTO alert (account, threshold, at) VALUES (:account, :threshold, :at)
ON CONFLICT (account, threshold) DO NOTHING;

-- name: alerts_of_dataset
SELECT alert.account, alert.threshold, alert.at, account.dataset, account.kind,
       account.name
FROM alert JOIN account ON account.id = alert.account
WHERE account.dataset = :dataset AND alert.threshold <> 'opened'
ORDER BY alert.at DESC, alert.account, alert.threshold DESC;

-- name: read_release
SELECT release_key, key_text, dataset, step, cost, reservation, owner, state, value,
       digest, at, length(value) AS size
FROM release WHERE release_key = :release_key;

-- name: claim_release
INSERT INTO release
    (release_key, key_text, dataset, step, cost, reservation, owner, state, at)
VALUES
    (:release_key, :key_text, :dataset, :step, :cost, :reservation, :owner, 'claimed',
     :at)
ON CONFLICT (release_key) DO UPDATE
SET reservation = excluded.reservation, owner = excluded.owner, cost = excluded.cost,
    state = 'claimed', value = NULL, digest = NULL, at = excluded.at;

-- name: settle_release
UPDATE release SET state = 'settled', value = :value, digest = :digest
WHERE release_key = :release_key AND reservation = :reservation;

-- name: drop_claim
DELETE FROM release
WHERE release_key = :release_key AND reservation = :reservation AND state = 'claimed';

-- name: reservation_ids
SELECT id FROM reservation;

-- name: any_reservation
SELECT id FROM reservation LIMIT 1;

-- name: witnessed_entry
SELECT seq, hash, amount, settled_after, held_after, run FROM entry
WHERE account = :account AND reservation = :reservation AND kind = 'reserve';

-- name: hashes_between
SELECT seq, hash FROM entry
WHERE account = :account AND seq >= :low AND seq <= :high;

-- name: journal_after
SELECT account, seq, kind, reservation, amount, settled_after, held_after, run, body,
       at, writer, hash
FROM entry WHERE account = :account AND seq > :above ORDER BY seq LIMIT :limit;

-- name: journal_sample
SELECT account, seq, kind, reservation, settled_after, held_after, body, at
FROM entry
WHERE account = :account AND seq > :above AND seq <= :upto
  AND (kind = 'refuse' OR seq = :last OR seq - seq / :stride * :stride = 0)
ORDER BY seq;

-- name: ends_of_reservation
SELECT account, seq, kind, amount FROM entry
WHERE account = :account AND reservation = :reservation
  AND kind IN ('settle', 'void', 'forfeit', 'seal');

-- name: postings
SELECT account, seq, kind, reservation, amount FROM entry
WHERE reservation = :reservation AND kind = 'reserve'
UNION ALL
SELECT account, seq, kind, reservation, amount FROM entry
WHERE reservation = :reservation AND kind IN ('settle', 'void', 'forfeit', 'seal')
UNION ALL
SELECT account, seq, kind, reservation, amount FROM entry
WHERE reservation = :reservation AND kind = 'draw';

-- name: amendments_of_reservation
SELECT amount FROM entry
WHERE account = :account AND reservation = :reservation AND kind = 'amend';

-- name: priors_of_account
SELECT seq, body FROM entry WHERE account = :account AND kind = 'prior';

-- name: reservations_after
SELECT id, state, accounts FROM reservation
WHERE id > :above ORDER BY id LIMIT :limit;

-- name: reservation_posts
SELECT r.id, r.state, r.accounts,
       (SELECT count(*) FROM entry s
        WHERE s.reservation = r.id AND s.kind = 'reserve') AS reserved,
       count(e.kind) AS ended, min(e.kind) AS first_end, max(e.kind) AS last_end
FROM reservation r
LEFT JOIN entry e ON e.reservation = r.id
  AND e.kind IN ('settle', 'void', 'forfeit', 'seal')
WHERE r.id >= :low AND r.id <= :high
GROUP BY r.id, r.state, r.accounts ORDER BY r.id;

-- name: orphans
SELECT e.account, e.seq, e.reservation FROM entry e
WHERE e.kind = 'reserve'
  AND NOT EXISTS (SELECT 1 FROM reservation r WHERE r.id = e.reservation)
LIMIT 1;

-- name: term_pins
SELECT dataset, number, pinned, policy_hash FROM term ORDER BY dataset, number;

-- name: releases_after
SELECT r.release_key, r.state, r.value, r.digest, charge.release_key AS charged_key,
       (SELECT min(e.body) FROM entry e
        WHERE e.reservation = r.reservation AND e.kind = 'settle'
          AND e.kind IN ('settle', 'void', 'forfeit', 'seal')) AS settled
FROM release r LEFT JOIN reservation charge ON charge.id = r.reservation
WHERE r.release_key > :above ORDER BY r.release_key LIMIT :limit;

-- name: unlisted
SELECT account, seq FROM entry
WHERE NOT EXISTS (SELECT 1 FROM entry_order
                  WHERE entry_order.account = entry.account
                    AND entry_order.seq = entry.seq)
ORDER BY account, seq LIMIT 1;

-- name: forgotten_refusals
SELECT e.account, e.seq, e.run FROM entry e
WHERE e.kind = 'refuse' AND e.run IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM refused f WHERE f.run = e.run AND f.charged = 1
                  AND f.account = e.account AND f.seq = e.seq)
ORDER BY e.account, e.seq LIMIT 1;

-- name: set_epoch
UPDATE ledger SET epoch = :epoch WHERE epoch < :epoch;

-- name: add_checkpoint
INSERT INTO checkpoint (account, seq, hash, number, signature, at, writer)
VALUES (:account, :seq, :hash, :number, :signature, :at, :writer);

-- name: checkpoints_of_account
SELECT seq, hash, number, signature FROM checkpoint
WHERE account = :account ORDER BY seq;

-- name: checkpoints_between
SELECT number AS seq, signature AS hash FROM checkpoint
WHERE account = :account AND number >= :low AND number <= :high;

-- name: newest_checkpoint
SELECT seq FROM checkpoint WHERE account = :account ORDER BY seq DESC LIMIT 1;

-- name: count_checkpoints
SELECT count(*) AS number FROM checkpoint;

-- name: count_entries
SELECT count(*) AS number FROM entry;
