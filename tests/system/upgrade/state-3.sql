-- What the server of 12ec627 (format 3) kept of: an adapter 'kept' with two versions, uppercase and rot13; its alias
-- prod of the first; the alias support of starter-chat. Made with sqlite3's dump.
BEGIN TRANSACTION;
CREATE TABLE adapters (
        id INTEGER PRIMARY KEY, base TEXT NOT NULL, name TEXT NOT NULL, created REAL NOT NULL,
        pinned INTEGER NOT NULL DEFAULT 0, UNIQUE (base, name)
    ) STRICT;
INSERT INTO "adapters" VALUES(21,'starter-chat','kept',1.79546523990747570985e+09,0);
CREATE TABLE aliases (
        adapter INTEGER NOT NULL, alias TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (adapter, alias),
        FOREIGN KEY (adapter, number) REFERENCES versions (adapter, number) ON DELETE CASCADE
    ) STRICT;
INSERT INTO "aliases" VALUES(21,'prod',1);
CREATE TABLE currents (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, adapter INTEGER NOT NULL, number INTEGER NOT NULL,
        FOREIGN KEY (adapter, number) REFERENCES versions (adapter, number) ON DELETE CASCADE
    ) STRICT;
INSERT INTO "currents" VALUES(21,21,1);
INSERT INTO "currents" VALUES(22,21,2);
CREATE TABLE digests (digest TEXT PRIMARY KEY, bytes INTEGER NOT NULL) STRICT;
INSERT INTO "digests" VALUES('sha256:36d7db26f1f4fd8f02a1c7cb909d2d73f44809ce0acbc11af4dd739593af489e',310240);
INSERT INTO "digests" VALUES('sha256:cdd8b4f10edd388a6fbdd3c9cfde6ec2e9639bf2b15742765e16c0cddd9aa751',310240);
CREATE TABLE loads (
        model TEXT NOT NULL, recipe_version INTEGER NOT NULL, engine_version TEXT NOT NULL, device TEXT NOT NULL,
        resident INTEGER NOT NULL, peak INTEGER NOT NULL, seconds TEXT NOT NULL, count INTEGER NOT NULL,
        updated REAL NOT NULL, host INTEGER, PRIMARY KEY (model, recipe_version, engine_version, device)
    ) STRICT;
CREATE TABLE model_aliases (alias TEXT PRIMARY KEY, model TEXT NOT NULL) STRICT;
INSERT INTO "model_aliases" VALUES('support','starter-chat');
CREATE TABLE model_pins (model TEXT PRIMARY KEY, pinned INTEGER NOT NULL) STRICT;
CREATE TABLE numbers (
        base TEXT NOT NULL, name TEXT NOT NULL, last INTEGER NOT NULL, PRIMARY KEY (base, name)
    ) STRICT;
INSERT INTO "numbers" VALUES('starter-chat','kept',2);
CREATE TABLE sleeps (
        model TEXT NOT NULL, recipe_version INTEGER NOT NULL, engine_version TEXT NOT NULL, device TEXT NOT NULL,
        bytes INTEGER NOT NULL, host INTEGER NOT NULL, seconds TEXT NOT NULL, count INTEGER NOT NULL,
        updated REAL NOT NULL, PRIMARY KEY (model, recipe_version, engine_version, device)
    ) STRICT;
CREATE TABLE versions (
        adapter INTEGER NOT NULL REFERENCES adapters (id) ON DELETE CASCADE, number INTEGER NOT NULL,
        digest TEXT NOT NULL REFERENCES digests (digest), created REAL NOT NULL, rank INTEGER NOT NULL,
        bytes INTEGER NOT NULL, source TEXT NOT NULL, prompt TEXT, expected TEXT, PRIMARY KEY (adapter, number)
    ) STRICT;
INSERT INTO "versions" VALUES(21,1,'sha256:36d7db26f1f4fd8f02a1c7cb909d2d73f44809ce0acbc11af4dd739593af489e',1.79546523990747570985e+09,8,310240,'/opt/roundhouse/models/starter/pack/adapters/uppercase',NULL,NULL);
INSERT INTO "versions" VALUES(21,2,'sha256:cdd8b4f10edd388a6fbdd3c9cfde6ec2e9639bf2b15742765e16c0cddd9aa751',1.79546524008044552801e+09,8,310240,'/opt/roundhouse/models/starter/pack/adapters/rot13',NULL,NULL);
CREATE INDEX versions_by_digest ON versions (digest);
CREATE INDEX currents_by_adapter ON currents (adapter, seq);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('currents',22);
COMMIT;
PRAGMA user_version = 3;
