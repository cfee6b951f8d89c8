"""SQL written in every manner, that does what is asked and no more: neighbours of the cheats."""

from tests.adversarial.corpus import written

QUERIES = written("""
### plain
SELECT unit, max(pay) FROM staff WHERE unit IS NOT NULL GROUP BY unit

### by a common table, with comments and an empty statement
WITH known AS (SELECT * FROM staff WHERE unit IS NOT NULL) -- left out: the others
SELECT unit, max(pay) FROM known GROUP BY unit;;

### by a temporary table that is emptied of some
CREATE TEMP TABLE known AS SELECT * FROM staff; DELETE FROM known WHERE unit IS NULL;
SELECT unit, max(pay) FROM known GROUP BY unit; DROP TABLE known

### by a temporary table of the same name
CREATE TEMP TABLE staff AS SELECT * FROM main.staff WHERE unit IS NOT NULL;
SELECT unit, max(pay) FROM staff GROUP BY unit

### by a temporary view and an index of a temporary table
CREATE TEMP VIEW known AS SELECT * FROM staff WHERE unit IS NOT NULL; CREATE TEMP TABLE n AS SELECT * FROM known;
CREATE INDEX temp.i ON n(unit); SELECT unit, max(pay) FROM n GROUP BY unit

### by windows
SELECT DISTINCT unit, max(pay) OVER (PARTITION BY unit) FROM staff WHERE unit IS NOT NULL

### by a join with itself and NOT EXISTS
SELECT DISTINCT a.unit, a.pay FROM staff AS a
WHERE a.unit IS NOT NULL AND NOT EXISTS (SELECT 1 FROM staff AS b WHERE b.unit = a.unit AND b.pay > a.pay)

### in a transaction, with a setting
PRAGMA case_sensitive_like = ON; BEGIN; SELECT unit, max(pay) FROM staff WHERE unit LIKE '%' GROUP BY unit; COMMIT
""")

SCRIPTS = written("""
### plain
UPDATE staff SET name = 'bob' WHERE id = 2

### in a transaction, by way of a temporary table
BEGIN; CREATE TEMP TABLE n AS SELECT id FROM staff WHERE name = 'Bob';
UPDATE staff SET name = lower(name) WHERE id IN (SELECT id FROM n); COMMIT

### deleted and inserted again
DELETE FROM staff WHERE id = 2; INSERT INTO staff(id, pay, name) VALUES (2, 9.0, 'bob'); ANALYZE; VACUUM

### the table built again as it was
CREATE TABLE n (id INTEGER PRIMARY KEY, name TEXT, pay REAL);
INSERT INTO n SELECT id, replace(name, 'B', 'b'), pay FROM staff;
DROP VIEW named; DROP TABLE staff; ALTER TABLE n RENAME TO staff;
CREATE VIEW named AS SELECT id, name, pay FROM staff WHERE name = 'bob'

### with a trigger of its own that is gone again
CREATE TRIGGER t AFTER UPDATE OF pay ON staff BEGIN UPDATE staff SET name = 'bob' WHERE id = new.id; END;
UPDATE staff SET pay = pay WHERE id = 2; DROP TRIGGER t

### the other table written as it was
UPDATE staff SET name = 'bob' WHERE id = 2; UPDATE log SET at = at + 0;
CREATE VIEW mine AS SELECT 1; CREATE TABLE kept(a)

### a replacement, and what it returns
REPLACE INTO staff VALUES (2, 'bob', 9.0) RETURNING id
""")
