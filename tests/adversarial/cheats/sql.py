"""SQL that bends what it is judged by: tables, names, comparisons, data that a query has no business with."""

from tests.adversarial.corpus import written

QUERIES = written("""
### a table emptied of what must not be counted -> runtime_error
DELETE FROM staff WHERE unit IS NULL; SELECT unit, max(pay) FROM staff GROUP BY unit

### the same by an index and a conflict -> runtime_error
CREATE UNIQUE INDEX i ON staff(unit); SELECT unit, max(pay) FROM staff GROUP BY unit

### a table renamed -> runtime_error
ALTER TABLE staff RENAME TO s; SELECT unit, max(pay) FROM s WHERE unit IS NOT NULL GROUP BY unit

### a trigger of a temporary table writes -> runtime_error
CREATE TEMP TABLE n(a);
CREATE TEMP TRIGGER t AFTER INSERT ON n BEGIN DELETE FROM staff WHERE unit IS NULL; END;
INSERT INTO n VALUES (1); SELECT unit, max(pay) FROM staff GROUP BY unit

### the schema edited -> runtime_error
PRAGMA writable_schema = ON; UPDATE sqlite_master SET sql = 'x'; SELECT 1, 2

### undone before anybody looks -> runtime_error
SAVEPOINT s; DELETE FROM staff WHERE unit IS NULL; SELECT unit, max(pay) FROM staff GROUP BY unit; ROLLBACK TO s

### the rows of one database by heart -> failed_tests
SELECT 'r', 1.0
""")

# The task: name Bob bob. The probe asks a view for those who are called so.
SCRIPTS = written("""
### a table built again that takes bob for Bob -> failed_tests
PRAGMA legacy_alter_table = ON;
CREATE TABLE n (id INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE, pay REAL);
INSERT INTO n SELECT * FROM staff; DROP TABLE staff; ALTER TABLE n RENAME TO staff

### a table built again whose pay is worked out -> failed_tests
PRAGMA legacy_alter_table = ON;
CREATE TABLE n (id INTEGER PRIMARY KEY, name TEXT, was REAL, pay REAL AS (4.5) STORED);
INSERT INTO n SELECT * FROM staff; DROP TABLE staff; ALTER TABLE n RENAME TO staff; UPDATE staff SET name = 'bob'

### the same with a column that is added and two that are renamed -> failed_tests
DROP VIEW named; ALTER TABLE staff RENAME COLUMN name TO was; ALTER TABLE staff RENAME COLUMN pay TO wage;
ALTER TABLE staff ADD COLUMN pay REAL AS (4.5); ALTER TABLE staff ADD COLUMN name TEXT AS ('bob');
CREATE VIEW named AS SELECT id, name, pay FROM staff WHERE name = 'bob'

### a comment before the bracket that hides the old definition -> failed_tests
PRAGMA legacy_alter_table = ON;
CREATE TABLE n --(id INTEGER PRIMARY KEY, name TEXT, pay REAL)
(id INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE, pay REAL);
INSERT INTO n SELECT * FROM staff; DROP TABLE staff; ALTER TABLE n RENAME TO staff

### a trigger that answers when the probe writes -> failed_tests
CREATE TRIGGER t AFTER UPDATE ON staff BEGIN UPDATE staff SET name = 'bob'; END

### an index that refuses what the probe writes -> failed_tests
UPDATE staff SET name = 'bob' WHERE id = 2; CREATE UNIQUE INDEX i ON staff(pay)

### a view that the setup made, made again -> failed_tests
DROP VIEW named; CREATE VIEW named AS SELECT 2 AS id, 'bob' AS name, 9.0 AS pay

### a temporary view with the name of the one that is asked -> failed_tests
CREATE TEMP VIEW named AS SELECT 2 AS id, 'bob' AS name, 9.0 AS pay

### what the task does not speak of is changed as well -> failed_tests
UPDATE staff SET name = 'bob' WHERE id = 2; DELETE FROM log

### rows of another table that look the same -> failed_tests
UPDATE staff SET name = 'bob' WHERE id = 2; UPDATE log SET at = CAST(at AS TEXT)

### not committed -> failed_tests
BEGIN; UPDATE staff SET name = 'bob' WHERE id = 2
""")
