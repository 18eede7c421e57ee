"""Defects of sinks. ``SinkContract`` must catch each one that is not equivalent to a correct sink.

Defects of the files and Kafka sinks redirect calls at seams (``of_plugins``). Other defects have no seam, and change
the source text: those within SQL or within a few lines of the smallest sinks, and those that depend on the lines at
which a process is killed.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeAlias

from tests.campaigns.contract import of_plugins
from tests.campaigns.seams import Seam, patched


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces the first ``old`` in ``file`` by ``new``."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A sink with a defect.

    Attributes:
        subject: the sink, one of ``SUBJECTS``.
        defect: the defect, as a sentence.
        edits: the changes of the source that cause it.
        seams: the redirected calls that cause it.
        equivalent: why no reader and no later process can notice the defect. If given, no test may fail.
    """

    subject: str
    defect: str
    edits: tuple[Edit, ...] = ()
    equivalent: str = ""
    seams: tuple[Seam, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.subject}: {self.defect}"


Change: TypeAlias = "tuple[str, str] | str"
"""What is replaced, and by what; or the lines of a diff."""


def _in(subject: str, file: str, defect: str, *edits: Change, equivalent: str = "") -> Mutant:
    pairs = (_of_diff(each) if isinstance(each, str) else each for each in edits)
    return Mutant(subject, defect, tuple(Edit(file, old, new) for old, new in pairs), equivalent)


def _of_diff(diff: str) -> tuple[str, str]:
    lines = diff.removeprefix("\n").split("\n")
    old, new = ([line[1:] for line in lines if line[:1] != other] for other in "+-")
    return "\n".join(old), "\n".join(new)


def _sqlite(defect: str, *edits: Change, equivalent: str = "") -> Mutant:
    return _in("sqlite", "twopc_sqlite.py", defect, *edits, equivalent=equivalent)


def _memory(defect: str, *edits: Change, equivalent: str = "") -> Mutant:
    return _in("memory", "memory.py", defect, *edits, equivalent=equivalent)


def _files(defect: str, file: str, *edits: Change, equivalent: str = "") -> Mutant:
    return _in("files", f"twopc_files/{file}", defect, *edits, equivalent=equivalent)


_METHODS = "    # On the task that writes.\n"  # where a method is added to the SQLite sink
_PARTITION = '.rsplit(".", 2)[0]'  # what the name of an attempt has in common with those of others
_UNSTAGE = 'connection.execute("DELETE FROM staged WHERE name = ?", (name,))'
_UNSTAGE_LIKE = 'connection.execute("DELETE FROM staged WHERE name LIKE ?",'


def _cut(text: str) -> str:
    return f"json.dumps({{k: {text} if isinstance(v, str) else v for k, v in record.items()}})"


def _changed(value: str) -> tuple[str, str]:
    """A write that changes values, ``v`` each, at an edge that no sample has."""
    return "batch.to_pylist())", f"{{k: {value} for k, v in record.items()}} for record in batch.to_pylist())"


def _taken_for(method: str, answer: str) -> tuple[tuple[str, str], ...]:
    """``method`` renamed, and one of its name that takes ``Retriable`` for an answer."""
    parameter = {"recover": ""}.get(method, "committable")
    again = (
        f"    def {method}(self{parameter and ', '}{parameter}):\n"
        f"        try:\n            return self._{method}({parameter})\n"
        f"        except Retriable:\n            {answer}\n\n"
    )
    return (f"    def {method}(self", f"    def _{method}(self"), (_METHODS, again + _METHODS)


_STAGE, _STAGE_ANYWAY = (
    "INSERT INTO staged SELECT name, ? FROM transactions WHERE name = ?",
    "INSERT INTO staged VALUES (?2, ?1)",
)

SQLITE = (
    _sqlite(
        "only the last write of a transaction is kept",
        """
+            connection.execute("DELETE FROM staged WHERE name = ?", (transaction.id.exact,))
             connection.executemany("INSERT INTO staged""",
    ),
    _sqlite("a write keeps its first record alone", ("batch.to_pylist())", "batch.to_pylist()[:1])")),
    _sqlite(
        "a write does not see where a slice begins",
        (
            "batch.to_pylist())",
            (
                "pa.record_batch({name: pa.Array.from_buffers(column.type, len(column), column.buffers())"
                " for name, column in zip(batch.schema.names, batch.columns)}"
                " if batch.num_columns == 1 else batch).to_pylist())"
            ),
        ),
    ),
    _sqlite(
        "a write publishes",
        (_STAGE, "INSERT INTO records SELECT ?1 WHERE ?2 <> ''"),
    ),
    _sqlite(
        "a write after its rollback leaves its records",
        (_STAGE, _STAGE_ANYWAY),
    ),
    _sqlite(
        "null becomes an empty text",
        ("json.dumps(record)", 'json.dumps({k: "" if v is None else v for k, v in record.items()})'),
    ),
    _sqlite(
        "a value that can't be written is no Refused, so that the batch is run again for ever",
        """
+            if None in batch.column("value").to_pylist():
+                raise ValueError("null")
             rows = (""",
    ),
    _sqlite(
        "validate accepts a column that write refuses",
        (_METHODS, "    def validate(self, schema: pa.Schema) -> None:\n        pass\n\n" + _METHODS),
        """
+            if "of_the_contract" in batch.schema.names:
+                from twopc.errors import ConfigurationError
+                raise ConfigurationError("unknown column")
             rows = (""",
    ),
    _sqlite(
        "validate needs the sink's names in a log",
        """
+    def validate(self, schema: pa.Schema) -> None:
+        assert self.transactional_ids.scope
+
     # On the task that writes.""",
    ),
    _sqlite(
        "the records are in the committable",
        """
-Committable(transaction.id.exact, {}, transaction.records)
+Committable(transaction.id.exact, {"records": ["a"] * transaction.records}, transaction.records)""",
    ),
    _sqlite("a vote does not say how many records it is for", (", {}, transaction.records)", ", {})")),
    _sqlite(
        "a transaction that was rolled back gets a yes vote",
        ("(transaction.id.exact,)).rowcount != 1:", "(transaction.id.exact,)).rowcount > 1:"),
    ),
    _sqlite(
        "records wait in the memory of the process that wrote them",
        """
+            self.__dict__.setdefault("rows", {}).setdefault(transaction.id.exact, []).extend(
+                (json.dumps(record),) for record in batch.to_pylist()
+            )
+            return
             rows = (""",
        """
-connection.execute(move, (name,))
+connection.executemany("INSERT INTO records VALUES (?)", self.__dict__.get("rows", {}).pop(name, []))""",
    ),
    _sqlite(
        "a commit publishes what every transaction has staged",
        ("FROM staged WHERE name = ? ORDER", "FROM staged WHERE ? <> '' ORDER"),
    ),
    _sqlite(
        "a commit removes what other transactions have staged",
        ("DELETE FROM staged WHERE name = ?", "DELETE FROM staged WHERE ? <> ''"),
    ),
    _sqlite(
        "a commit of what was rolled back is a success",
        (
            "                case found:",
            "                case None:\n                    return\n                case found:",
        ),
    ),
    _sqlite("a commit of what was rolled back is Retriable", ("raise TransactionLost(", "raise Retriable(")),
    _sqlite(
        "a commit of what is committed publishes it again",
        (
            'case ("committed",):\n                    return\n                case ("prepared",):',
            'case ("prepared" | "committed",):',
        ),
        ('                    connection.execute("DELETE FROM staged WHERE name = ?", (name,))\n', ""),
    ),
    _sqlite(
        "a commit of what is committed is Retriable",
        ("                    return\n", '                    raise Retriable("committed already")\n'),
    ),
    _sqlite(
        "a commit publishes, and notes it in a second step",
        """
+                    connection.commit()
                     connection.execute("UPDATE transactions SET state = 'committed'""",
        ('                    connection.execute("DELETE FROM staged WHERE name = ?", (name,))\n', ""),
    ),
    _sqlite(
        "a commit is noted, and published in a second step",
        """
+                    connection.execute("UPDATE transactions SET state = 'committed' WHERE name = ?", (name,))
+                    connection.commit()
                     connection.execute(move, (name,))""",
    ),
    _sqlite(
        "a commit publishes and removes what was staged, and notes it in a second step",
        """
+                    connection.commit()
                     connection.execute("UPDATE transactions SET state = 'committed'""",
        equivalent="a repeated commit finds nothing staged, so it publishes nothing and records the commit",
    ),
    _sqlite(
        "commits of several threads take each other's transactions",
        ("        name = committable.transaction_id\n", "        self._name = committable.transaction_id\n"),
        """
             connection.execute("BEGIN IMMEDIATE")
+            name = self._name""",
    ),
    _sqlite(
        "a commit does not lock what it reads",
        ('connection.execute("BEGIN IMMEDIATE")', "pass"),
        equivalent="if two commits read 'prepared', the second finds nothing staged and records the same state",
    ),
    _sqlite("the commit of a batch that complete was called for fails", ("AND batch_id < ?", "AND batch_id <= ?")),
    _sqlite(
        "complete forgets the commits of other queries",
        (" AND substr(name, 1, ?) = ?", ""),
        ("(batch_id, len(scope), scope)", "(batch_id,)"),
    ),
    _sqlite(
        "complete fails for a batch without transactions",
        ("            scope = self", "            committables[0]\n            scope = self"),
    ),
    _sqlite(
        "complete is not repeatable",
        """
+            connection.execute("CREATE TABLE completed (batch_id)") if batch_id == 0 else None
             scope = self""",
    ),
    _sqlite(
        "an abort on a participant does nothing",
        (_METHODS, f"    def discard(self, transaction):\n        pass\n\n{_METHODS}"),
    ),
    _sqlite(
        "an abort rolls back every transaction of the sink",
        """
-DELETE FROM transactions WHERE name = ? AND state <> 'committed'
+DELETE FROM transactions WHERE ? <> '' AND state <> 'committed'""",
    ),
    _sqlite(
        "an abort of what is committed forgets the commit",
        ("WHERE name = ? AND state <> 'committed'", "WHERE name = ?"),
    ),
    _sqlite(
        "an abort of what does not exist fails",
        (
            'connection.execute("DELETE FROM staged WHERE name = ?", (name,))\n\n',
            "pass\n            else:\n                raise KeyError(name)\n\n",
        ),
    ),
    _sqlite(
        "an abort leaves the records",
        """
-            if connection.execute(forget, (name,)).rowcount:
-                connection.execute("DELETE FROM staged WHERE name = ?", (name,))
+            connection.execute(forget, (name,))""",
    ),
    _sqlite("recover misses what is not prepared", ("WHERE state <> 'committed'\")]", "WHERE state = 'prepared'\")]")),
    _sqlite("recover lists what is committed", (" WHERE state <> 'committed'\")]", '")]')),
    _sqlite("recover lists the transactions of every query", (" if self.transactional_ids.owns_exact(name)]", "]")),
    _sqlite(
        "recover lists what belongs to a sink whose name begins with its own",
        ("self.transactional_ids.owns_exact(name)]", "name.startswith(self.transactional_ids.scope[:-1])]"),
    ),
    _sqlite(
        "recover finds its own names by LIKE",
        """
-WHERE state <> 'committed'")]
+WHERE state <> 'committed' AND name LIKE ?", (self.transactional_ids.scope + '%',))]""",
        (" if self.transactional_ids.owns_exact(name)]", "]"),
    ),
    _sqlite(
        "recover rolls back what it lists",
        """
+            connection.execute("DELETE FROM transactions WHERE state <> 'committed'")
         return [Committable(name, {}) for name in names""",
    ),
    _sqlite(
        "recover gives what is open a handle that no vote has",
        ("        return [Committable(name, {}) for", '        return [Committable(name + "?", {}) for'),
    ),
    _sqlite(
        "open rolls back what is open",
        (
            _METHODS,
            "    def open(self) -> None:\n"
            "        with self._connection() as connection:\n"
            "            connection.execute(\"DELETE FROM transactions WHERE state <> 'committed'\")\n\n" + _METHODS,
        ),
    ),
    _sqlite(
        "seal leaves out a transaction",
        (
            _METHODS,
            "    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:\n"
            "        return committables[:1]\n\n" + _METHODS,
        ),
    ),
    _sqlite(
        "seal returns the transactions in another order",
        (
            _METHODS,
            "    def seal(self, committables: Sequence[Committable], age_s: float) -> Sequence[Committable]:\n"
            "        return sorted(committables, key=lambda committable: committable.transaction_id)\n\n" + _METHODS,
        ),
    ),
    _sqlite(
        "a sink that was closed is of no use any more",
        (_METHODS, "    def close(self) -> None:\n        self._path = ''\n\n" + _METHODS),
    ),
    _sqlite(
        "an examination leaves a transaction open",
        (
            _METHODS,
            "    def check(self):\n"
            "        from twopc import Round\n\n"
            "        self.begin(self.transactional_ids.allocate(Round(0, 0), partition=0))\n"
            "        return ()\n\n" + _METHODS,
        ),
    ),
    # Several attempts of one partition.
    _sqlite(
        "the attempts of a partition stage together",
        (_STAGE, _STAGE_ANYWAY),
        ("transaction.id.exact) for record", f"transaction.id.exact{_PARTITION}) for record"),
        ("(move, (name,))", f"(move, (name{_PARTITION},))"),
        (_UNSTAGE, _UNSTAGE.replace("(name,)", f"(name{_PARTITION},)")),
        (_UNSTAGE, _UNSTAGE.replace("(name,)", f"(name{_PARTITION},)")),
    ),
    _sqlite(
        "a commit publishes what every attempt of its partition has staged",
        ("FROM staged WHERE name = ? ORDER", "FROM staged WHERE name LIKE ? ORDER"),
        ("(move, (name,))", f'(move, (name{_PARTITION} + ".%",))'),
    ),
    _sqlite(
        "an abort removes what every attempt of its partition has staged",
        (f"{_UNSTAGE}\n\n", f'{_UNSTAGE_LIKE} (name{_PARTITION} + ".%",))\n\n'),
    ),
    _sqlite(
        "an attempt rolls back the others of its partition",
        """
+            forget = "DELETE FROM transactions WHERE name LIKE ? AND state <> 'committed'"
+            connection.execute(forget, (transaction_id.exact.rsplit(".", 2)[0] + ".%",))
             row = (""",
    ),
    _sqlite(
        "an attempt removes what the others of its partition have staged",
        (
            "            row = (",
            f'            {_UNSTAGE_LIKE} (transaction_id.exact{_PARTITION} + ".%",))\n            row = (',
        ),
    ),
    _sqlite(
        "recover lists one attempt of each partition",
        """
+        names = {name.rsplit(".", 2)[0]: name for name in names}.values()
         return [Committable(""",
    ),
    # Several records of one transaction.
    _sqlite(
        "a commit publishes record by record",
        """
-                    connection.execute(move, (name,))
+                    of_name = connection.execute("SELECT rowid FROM staged WHERE name = ?", (name,))
+                    for row in of_name.fetchall():
+                        connection.execute("INSERT INTO records SELECT document FROM staged WHERE rowid = ?", row)
+                        connection.execute("DELETE FROM staged WHERE rowid = ?", row)
+                        connection.commit()""",
    ),
    _sqlite(
        "a commit publishes the first record before the others",
        """
+                    first = "SELECT min(rowid) FROM staged WHERE name = ?"
+                    row = connection.execute(first, (name,)).fetchone()
+                    connection.execute("INSERT INTO records SELECT document FROM staged WHERE rowid = ?", row)
+                    connection.execute("DELETE FROM staged WHERE rowid = ?", row)
+                    connection.commit()
                     connection.execute(move, (name,))""",
    ),
    # Large writes and long texts.
    _sqlite("a write keeps its first thousand records alone", ("batch.to_pylist())", "batch.to_pylist()[:1000])")),
    _sqlite("a commit publishes a thousand records at most", (" ORDER BY rowid", " ORDER BY rowid LIMIT 1000")),
    _sqlite(
        "the last record of each thousand is lost",
        ("batch.to_pylist())", "(each for row, each in enumerate(batch.to_pylist()) if row % 1000 != 999))"),
    ),
    _sqlite("a text is cut after 255 characters", ("json.dumps(record)", _cut("v[:255]"))),
    _sqlite("a text is cut after 4000 characters", ("json.dumps(record)", _cut("v[:4000]"))),
    _sqlite(
        "a text is cut after 65535 bytes", ("json.dumps(record)", _cut("v.encode()[:65535].decode(errors='ignore')"))
    ),
    _sqlite(
        "records that begin alike are taken for one",
        ("name = ? ORDER BY rowid", "name = ? GROUP BY substr(document, 1, 200)"),
    ),
    # What is left.
    _sqlite("a commit leaves the staged records", (f"                    {_UNSTAGE}\n", "")),
    _sqlite(
        "an abort on a participant leaves the staged records",
        """
+    def discard(self, transaction: Transaction) -> None:
+        with self._connection() as connection:
+            connection.execute("DELETE FROM transactions WHERE name = ?", (transaction.id.exact,))
+
     # On the task that writes.""",
    ),
    _sqlite(
        "a commit removes what is staged in a second step, which no repetition makes good",
        (f"                    {_UNSTAGE}\n", ""),
        """
 SET state = 'committed' WHERE name = ?", (name,))
+                    connection.commit()
+                    connection.execute("DELETE FROM staged WHERE name = ?", (name,))""",
    ),
    # No answer.
    _sqlite("no answer is taken for a loss", ("raise Retriable(f", "raise TransactionLost(f")),
    _sqlite("a commit without an answer is a success", *_taken_for("commit", "return")),
    _sqlite("an abort without an answer is a success", *_taken_for("abort", "return")),
    _sqlite("recover finds nothing open where nobody answers", *_taken_for("recover", "return []")),
)

MEMORY = (
    _memory(
        "a write goes to every attempt of its partition",
        """
-            self.target.open[transaction.id.exact].extend(batch.to_pylist())
+            for name, records in self.target.open.items():
+                if name.rsplit(".", 2)[0] == transaction.id.exact.rsplit(".", 2)[0]:
+                    records.extend(batch.to_pylist())""",
    ),
    _memory(
        "an abort rolls back every attempt of its partition",
        """
-            self.target.open.pop(committable.transaction_id, None)
+            partition = committable.transaction_id.rsplit(".", 2)[0]
+            for name in [name for name in self.target.open if name.rsplit(".", 2)[0] == partition]:
+                self.target.open.pop(name)""",
    ),
    _memory("only the last write of a transaction is kept", (".extend(batch.to_pylist())", "[:] = batch.to_pylist()")),
    _memory(
        "a vote publishes",
        """
+        self.target.visible.extend(self.target.open[transaction.id.exact])
         return Committable(transaction.id.exact, {}, transaction.records)""",
    ),
    _memory(
        "a transaction that was rolled back gets a yes vote",
        ("if transaction.id.exact not in self.target.open:", "if False:"),
    ),
    _memory(
        "a commit publishes everything that is open",
        (
            "            self._apply(name)\n",
            "            for each in list(self.target.open):\n                self._apply(each)\n",
        ),
    ),
    _memory(
        "a commit of what was rolled back is a success",
        (
            "            if name not in self.target.open:\n",
            "            if name not in self.target.open:\n                return\n            if False:\n",
        ),
    ),
    _memory("a commit is not remembered", ("            self.target.committed.add(name)\n", "")),
    _memory(
        "of commits in several threads one undoes another",
        """
-            self._apply(name)
+            seen = list(self.target.visible)
+            self.target.lock.release()
+            __import__('time').sleep(0.01)
+            self.target.lock.acquire()
+            self.target.visible[:] = seen + self.target.open.pop(name)""",
    ),
    _memory(
        "an abort rolls back everything that is open",
        ("self.target.open.pop(committable.transaction_id, None)", "self.target.open.clear()"),
    ),
    _memory(
        "an abort on a participant does nothing",
        ("    def recover(", "    def discard(self, transaction):\n        pass\n\n    def recover("),
    ),
    _memory(
        "an abort of what is committed forgets the commit",
        """
 self.target.open.pop(committable.transaction_id, None)
+            self.target.committed.discard(committable.transaction_id)""",
    ),
    _memory("recover lists the transactions of every query", (" if self.transactional_ids.owns_exact(name)]", "]")),
    _memory(
        "recover takes away what it lists",
        """
-for name in self.target.open if self.transactional_ids.owns_exact(name)]
+for name in list(self.target.open)
+                if self.transactional_ids.owns_exact(name) and self.target.open.pop(name) is not None]""",
    ),
    _memory("text ends at a NUL", _changed("v.partition(chr(0))[0] if isinstance(v, str) else v")),
    _memory("a zero loses its sign", _changed("v + 0.0 if isinstance(v, float) else v")),
    _memory(
        "an accent becomes one character with its letter",
        _changed("__import__('unicodedata').normalize('NFC', v) if isinstance(v, str) else v"),
    ),
    _memory(
        "recover misses what has no record yet",
        ("for name in self.target.open if self", "for name, records in self.target.open.items() if records and self"),
        equivalent="neither a reader nor a later transaction can notice a transaction without records",
    ),
)

FILES = (
    *(Mutant("files", defect, seams=(seam,)) for defect, seam in of_plugins.FILES),
    Mutant(
        "files",
        "recover lists one file of a transaction alone",
        seams=(of_plugins.ONE_FILE_EACH,),
        equivalent="a sweep lists again until nothing is new, so it finds the other files, too",
    ),
    _files(
        "a commit writes the file a second time, piece by piece",
        "stores/local.py",
        (
            "        (self._pending / file.pending).rename(self.folder / file.target)",
            (
                "        whole = (self._pending / file.pending).read_bytes()\n"
                # Enough lines that a process is certainly killed at one of them.
                + 6 * "        (self.folder / file.target).write_bytes(whole[:1])\n"
                + "        (self.folder / file.target).write_bytes(whole)\n"
                "        (self._pending / file.pending).unlink()"
            ),
        ),
    ),
    _files(
        "recover does not sort what it groups",
        "sink.py",
        ("        pending.sort(key=lambda file: file.transaction_id)\n", ""),
        equivalent="a local store lists files by name, and a name begins with its transaction",
    ),
)

KAFKA = tuple(Mutant("kafka", defect, seams=seams) for defect, seams in of_plugins.KAFKA)

AS_THEY_ARE = tuple(
    Mutant(subject, "the sink as it is", equivalent="it has no defect")
    for subject in ("sqlite", "memory", "files", "kafka", "keyed sql", "keyed memory")
)


def _keyed(defect: str, file: str, *edits: Change, equivalent: str = "") -> Mutant:
    return _in("keyed sql", f"twopc_sql/{file}", defect, *edits, equivalent=equivalent)


def _keyed_memory(defect: str, *edits: Change) -> Mutant:
    return _in("keyed memory", "memory.py", defect, *edits)


_DELETED = "sa.tuple_(*(table.c[name] for name in key)).in_(chosen)"

KEYED = (
    _keyed("a delete removes nothing", "tables.py", (_DELETED, f"{_DELETED} & sa.false()")),
    _keyed(
        "a delete removes nothing, and reports that it has",
        "tables.py",
        (_DELETED, f"{_DELETED} & sa.false()"),
        ("left += _count", "left += 0 * _count"),
    ),
    _keyed("a delete removes every row", "tables.py", (_DELETED, "sa.true()")),
    _keyed(
        "a delete takes upper and lower case for equal",
        "tables.py",
        (_DELETED, "sa.func.lower(table.c[key[0]]).in_(sa.select(sa.func.lower(keys.c[key[0]])).where(ours))"),
    ),
    _keyed(
        "a commit deletes what any transaction has staged",
        "tables.py",
        (
            ".where(ours)\n                connection.execute(sa.delete",
            ".where(sa.true())\n                connection.execute(sa.delete",
        ),
    ),
    _keyed(
        "a delete is done when it is written",
        "sink.py",
        """
                 self._tables.stage(connection, table, name, transaction.ordinal, batch)
+                if table == transaction.deletes:
+                    self._tables._delete(connection, table, [name])""",
    ),
    _keyed(
        "the keys of a transaction that has deletes alone are forgotten",
        "tables.py",
        ("_delete(connection, *each) for each in _by(rows, ", "_delete(connection, *each) for each in _by(_both, "),
        ("        deleted = [", "        _both = [row for row in rows if row.staged]\n        deleted = ["),
    ),
    _keyed(
        "only the last deletes of a transaction are kept",
        "sink.py",
        """
+        transaction.ordinal = 0
         self._stage(transaction, keys, deletes=transaction.deletes)""",
    ),
    _keyed(
        "deletes stay staged after their transaction has ended",
        "tables.py",
        ('(*_by(rows, "staged"), *_by(rows, "deletes"))', '_by(rows, "staged")'),
    ),
    _keyed(
        "a batch that was tried before its decision stays",
        "sink.py",
        ("                connection.rollback()\n", "                connection.commit()\n"),
    ),
    _keyed(
        "a record is added only if its key is new",
        "dialects.py",
        (
            "    return insert.on_conflict_do_update(index_elements=keys, set_=set_)",
            "    return insert.on_conflict_do_nothing(index_elements=keys)",
        ),
    ),
    _keyed(
        "a column that records do not have is set to null",
        "dialects.py",
        (
            "insert.excluded[name] for name in others or keys}",
            'insert.excluded[name] for name in others} or {"value": None}',
        ),
    ),
    _keyed(
        "a null replaces no value",
        "tables.py",
        ("require_keys(batch, self._options.upsert_by)", "require_keys(batch, batch.schema.names)"),
        equivalent="the sink refuses the null, which it may",
    ),
    _keyed(
        "a key may be null",
        "tables.py",
        ("require_keys(batch, self._options.upsert_by)", "pass"),
        equivalent="the key of SQLite's staging table refuses it, too; DuckDB's does not, and its tests fail",
    ),
    _keyed(
        "a key that is refused takes the others of its half with it",
        "sink.py",
        """
-written_by_halves(lambda some: self.delete(transaction, some), keys)
+written_by_halves(lambda some: self.delete(transaction, some), keys.slice(1, 1))""",
    ),
    _keyed(
        "a repeated commit of an older batch is applied once more",
        "sink.py",
        ("        if mark is not None and mark >= batch_id:\n            return\n        what", "        what"),
    ),
    _keyed(
        "records are moved before deletes are done",
        "tables.py",
        ('deleted = [self._delete(connection, *each) for each in _by(rows, "deletes")]', "deleted = []"),
        """
+        deleted = [self._delete(connection, *each) for each in _by(rows, "deletes")]
         if self._options.dialect.at_once:""",
        equivalent="a batch names each key at most once",
    ),
    _keyed_memory(
        "a delete removes rows when it is written",
        """
+            gone = [*map(self._key_of, keys.to_pylist())]
+            left = [row for row in self.target.visible if self._key_of(row) not in gone]
+            self.target.visible[:] = left
             self.target.deletes.setdefault""",
    ),
    _keyed_memory(
        "an abort leaves the deletes of a transaction",
        ("            self.target.deletes.pop(committable.transaction_id, None)\n", ""),
    ),
    _keyed_memory(
        "a late commit is applied again",
        ("            self.target.committed.add(name)\n", ""),
        """
-records, deletes = self.target.open.pop(name), self.target.deletes.pop(name, [])
+records, deletes = self.target.open[name], self.target.deletes.get(name, [])""",
    ),
    _keyed_memory("a record does not replace the one of its key", ("        if self.key:\n", "        if deletes:\n")),
)

MUTANTS = (*AS_THEY_ARE, *SQLITE, *MEMORY, *FILES, *KAFKA, *KEYED)


def named(name: str) -> Mutant:
    """Return the mutant with that name. A name can be passed to another process, a seam can't."""
    [mutant] = (mutant for mutant in MUTANTS if mutant.name == name)
    return mutant


_IN_PLACE = ExitStack()
"""Never closed, because a process has one sink with one defect."""


def put_in_place(name: str) -> None:
    """Redirect the calls at a mutant's seams until this process ends."""
    _IN_PLACE.enter_context(patched(named(name).seams))
