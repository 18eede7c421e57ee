------------------------------------ MODULE twopc ------------------------------------
(* The protocol of twopc: queries that restart, a commit log, task attempts, and a target system with named
   transactions, such as Kafka. docs/internals/model.md says what is in it, what is not, and how to read a counterexample.

   A query runs in several *lives*: starts of its driver. A newer life may begin at any moment. A life that takes no
   further step has crashed; one that goes on beside a newer life is a zombie. So there is no step for a crash.

   Hole names a defect that is put into the protocol. Each must lead to a counterexample. *)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
    Lives,      \* number of starts of the driver
    Tasks,      \* set of tasks; each writes its share of every record's batch
    Sinks,      \* set of sinks, each with its own target system
    Batches,    \* number of batches
    Kept,       \* entries of the log that pruning leaves behind the newest
    Rivals,     \* how many speculative task attempts may start
    Timeouts,   \* how many transactions the target systems may roll back by themselves
    Unanswered, \* how many appends to the log may end without an answer
    Stale,      \* how many commits may meet a coordinator of the target system that does not know the transaction
    Falls,      \* how often the checkpoint may fall back to an older state
    Hole        \* the name of a defect, or "none"

None == <<0, 0>>            \* a batch that was not planned
MaxOffset == 2 * Batches + 1  \* records of the source; see Ends

VARIABLES
    log,        \* every entry that was ever appended; entry i is in slot i
    pruned,     \* the slots 1..pruned were removed
    flying,     \* appends whose requests may still reach the store, after their drivers gave up: slot and entry
    offsets,    \* the checkpoint's offset log: batch |-> what it reads, or None
    commits,    \* the newest batch in the checkpoint's commit log
    life,       \* the lives: number |-> state
    attempt,    \* the task attempts that were started: attempt |-> state
    tx,         \* the transactions: <<attempt, sink>> |-> status. An attempt begins one per sink, so this pair is its epoch
    used,       \* the names: <<task, number>> |-> the round that used it last
    left        \* kind of fault |-> how many may still happen

vars == <<log, pruned, flying, offsets, commits, life, attempt, tx, used, left>>

--------------------------------------------------------------------------------------
(* Values *)

Max(set) == CHOOSE n \in set : \A m \in set : m <= n
Min(set) == CHOOSE n \in set : \A m \in set : n <= m
Numbers == 1 .. Lives
Last == Lives

\* Rounds are ordered: of two lives the newer one has the newer rounds. See RoundNumbers in plugins/kafka/twopc_kafka/leases.py.
Round(a) == <<a.life, a.batch>>
Older(r, s) == r[1] < s[1] \/ (r[1] = s[1] /\ r[2] < s[2])

\* An entry of the log. Every kind carries the newest decided batch, so that only the tail must be read.
Empty == [kind |-> "none", by |-> 0, batch |-> 0, reads |-> None, names |-> {}]
LogTail == IF log = <<>> THEN Empty ELSE log[Len(log)]
Decisions == {i \in DOMAIN log : log[i].kind = "decide"}
Decided == UNION {log[i].names : i \in Decisions}

Open(t) == t \in DOMAIN tx /\ tx[t] = "open"
OpenNow == {t \in DOMAIN tx : tx[t] = "open"}
Of(names) == names \X Sinks

NewLife == [pc |-> "new", slot |-> 0, tail |-> Empty, batch |-> 0, reads |-> None, votes |-> {}, due |-> {}, listed |-> {},
            after |-> "idle"]

InitWith(new) ==
    /\ log = <<>>
    /\ pruned = 0
    /\ flying = {}
    /\ offsets = [b \in 1 .. Batches |-> None]
    /\ commits = 0
    /\ life = [l \in Numbers |-> new]
    /\ attempt = <<>>
    /\ tx = <<>>
    /\ used = <<>>
    /\ left = [rival |-> Rivals, timeout |-> Timeouts, unanswered |-> Unanswered, stale |-> Stale, fall |-> Falls]

Init == InitWith(NewLife)

Goes(l, pc) == life[l].pc = pc
To(l, changes) == life' = [life EXCEPT ![l] = changes @@ @]
\* A life that takes no more steps. What it knew no longer matters, so all such lives are alike.
Stop(l, pc) ==
    life' = [life EXCEPT ![l] = [NewLife EXCEPT !.pc = pc, !.batch = IF l = Last THEN life[l].batch ELSE 0]]
Spend(kind) == left[kind] > 0 /\ left' = [left EXCEPT ![kind] = @ - 1]

--------------------------------------------------------------------------------------
(* The commit log: twopc/log/steps.py *)

\* Append an entry after the tail that the life knows. Pruning removes the oldest entries first.
Appended(l, entry) ==
    /\ log' = Append(log, entry)
    /\ pruned' = Max({pruned, Len(log) - Kept})

\* Whether the life's tail is the newest entry, so that it can put one after it. Upholds invariant 3: of two coordinators, one gets a
\* slot. A slot that was pruned is free again, so the entry before it must still be there (`_append`).
IsNewest(l) == Len(log) = life[l].slot
SlotIsPruned(l) == life[l].slot < pruned

\* CommitLog.open: fences every older life. The read and the put-if-absent are one step, because a put that finds the slot
\* taken starts over.
OpenLog(l) ==
    LET entry == [LogTail EXCEPT !.kind = "open", !.by = l]
        due == IF Hole = "a recovery commits nothing" THEN {} ELSE Of(LogTail.names)
    IN
    /\ Goes(l, "new")
    /\ \A m \in Numbers : m < l => life[m].pc # "new"
    /\ IF Hole = "an older coordinator is not fenced" /\ log # <<>>
       THEN UNCHANGED <<log, pruned>> /\ To(l, [pc |-> "commit", slot |-> Len(log), tail |-> LogTail, due |-> due])
       ELSE /\ Appended(l, entry)
            /\ To(l, [pc |-> "commit", slot |-> Len(log) + 1, tail |-> entry, due |-> due])
    /\ UNCHANGED <<flying, offsets, commits, attempt, tx, used, left>>

--------------------------------------------------------------------------------------
(* Phase two: settle in twopc/protocol.py. Also the first part of a recovery. *)

\* What a commit by the transaction's name alone would meet, instead of one by name and epoch.
NewestOfName(t) ==
    LET same == {u \in DOMAIN tx : u[2] = t[2] /\ u[1].task = t[1].task /\ attempt[u[1]].name = attempt[t[1]].name /\ Open(u)}
    IN IF Hole = "a commit is not bound to its epoch" /\ same # {} /\ ~Open(t) THEN CHOOSE u \in same : TRUE ELSE t

Commit(l, t) ==
    LET met == NewestOfName(t) IN
    /\ Goes(l, "commit")
    /\ t \in life[l].due
    /\ CASE tx[met] \in {"open", "committed"} ->
              tx' = [tx EXCEPT ![met] = "committed"] /\ To(l, [due |-> life[l].due \ {t}])
         [] OTHER ->  \* TransactionLost: the query stops loudly. Upholds invariant 2.
              /\ UNCHANGED tx
              /\ IF Hole = "a lost transaction is passed over" THEN To(l, [due |-> life[l].due \ {t}]) ELSE Stop(l, "lost")
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, used, left>>

\* A stale coordinator does not know the transaction. That is not final (invariant 10): the commit is repeated, which is
\* no step here.
BelieveStale(l, t) ==
    /\ Hole = "a stale coordinator's answer is final"
    /\ Goes(l, "commit") /\ t \in life[l].due /\ Open(t)
    /\ Spend("stale")
    /\ To(l, [due |-> life[l].due \ {t}])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used>>

\* All of the batch is committed, and the sweep begins.
IsCommitted(l) ==
    Goes(l, "commit") /\ (life[l].due = {} \/ Hole = "a batch is complete before all of it is committed")

--------------------------------------------------------------------------------------
(* The sweep: list what is open, then re-read the log, then abort what was listed. twopc/sweep.py. Upholds invariant 5. *)

ReadFirst == Hole = "the log is read before the transactions are listed"
Undecided(l) == {t \in OpenNow : t[1] \notin life[l].tail.names}

\* If nothing is open, the sweep is over.
List(l) ==
    /\ IF ReadFirst THEN Goes(l, "list") ELSE IsCommitted(l) \/ Goes(l, "sweep")
    /\ IF Undecided(l) = {} THEN IF life[l].after = "ended" THEN Stop(l, "ended") ELSE To(l, [pc |-> life[l].after])
       ELSE To(l, [pc |-> IF ReadFirst THEN "abort" ELSE "verify", listed |-> Undecided(l)])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

Verify(l) ==
    /\ IF ReadFirst THEN IsCommitted(l) \/ Goes(l, "sweep") ELSE Goes(l, "verify")
    /\ IF ~IsNewest(l) /\ Hole # "a sweep does not read the log again"
       THEN Stop(l, "ended") ELSE To(l, [pc |-> IF ReadFirst THEN "list" ELSE "abort"])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

Abort(l) ==
    /\ Goes(l, "abort")
    /\ tx' = [t \in DOMAIN tx |-> IF t \in life[l].listed /\ Open(t) THEN "aborted" ELSE tx[t]]
    /\ IF life[l].after = "ended" THEN Stop(l, "ended") ELSE To(l, [pc |-> life[l].after, listed |-> {}])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, used, left>>

\* Coordinator.rest, in a life that is through: lost attempts may begin after the last sweep, and hold back readers.
Rest(l) ==
    /\ Goes(l, "idle") /\ life[l].batch = Batches
    /\ Undecided(l) # {} /\ Hole # "a query that rests does not sweep"
    /\ To(l, [pc |-> "sweep"])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

--------------------------------------------------------------------------------------
(* Spark plans a batch, and the coordinator recognizes it: MicroBatchExecution, twopc/log/batch_identity.py *)

Planned == {b \in 1 .. Batches : offsets[b] # None}
Newest == IF Planned = {} THEN 0 ELSE Max(Planned)
Reads(b) == IF b = 0 THEN None ELSE offsets[b]

\* The batch that a life runs next. A start repeats the newest planned batch if the checkpoint has not recorded it.
Next_(l) == IF life[l].batch > 0 THEN life[l].batch + 1 ELSE IF Newest > commits THEN Newest ELSE Newest + 1

\* Entries that are still there, and have this batch as the newest decided one: read_decision in twopc/log/steps.py.
Kept_(b) == {i \in DOMAIN log : i > pruned /\ log[i].batch = b}

\* What the log says of a batch that reads `reads` and follows one that read `before`. Upholds invariant 9.
Recognized(l, b, reads, before) ==
    LET tail == life[l].tail
        byNumber == Hole = "a batch is recognized by its number alone"
    IN CASE b = tail.batch -> IF reads = tail.reads \/ byNumber THEN "record" ELSE "refused"
         [] b = tail.batch + 1 ->
              IF b = 1 \/ before = tail.reads \/ byNumber \/ Hole = "a batch may follow another one than the log's" THEN "write" ELSE "refused"
         [] b < tail.batch -> IF byNumber \/ \E i \in Kept_(b) : log[i].reads = reads THEN "record" ELSE "refused"
         [] OTHER -> "refused"

StartAttempts(l, b, reads) ==
    attempt' = [a \in {[life |-> l, batch |-> b, task |-> t, n |-> 1] : t \in Tasks} |->
                    [pc |-> "started", name |-> 0, reads |-> reads]] @@ attempt

Run(l, b, reads, before) ==
    LET what == Recognized(l, b, reads, before) IN
    /\ To(l, [pc |-> what, batch |-> b, reads |-> reads, votes |-> {}])
    /\ IF what = "write" THEN StartAttempts(l, b, reads) ELSE UNCHANGED attempt
    /\ UNCHANGED <<log, pruned, flying, commits, tx, used, left>>

\* A start runs the newest planned batch again.
Again(l) ==
    LET b == Newest IN
    /\ Goes(l, "idle") /\ life[l].batch = 0 /\ Newest > commits
    /\ IF b = 1 THEN TRUE ELSE offsets[b - 1] # None  \* else Spark refuses to start
    /\ Run(l, b, offsets[b], Reads(b - 1))
    /\ UNCHANGED offsets

\* Where a new batch may end. If nothing is left of an earlier plan of the number, no step and no promise depends on how
\* much it reads, so this is two records. Otherwise it may end before, at, or behind the end of before.
IsSeen(b) == (\E a \in DOMAIN attempt : a.batch = b) \/ (\E l \in Numbers : life[l].batch = b)
Ends(b, from) == IF IsSeen(b) THEN {from + 1, from + 2, from + 3} ELSE {from + 2}

Plan(l) ==
    LET b == Next_(l) IN
    /\ Goes(l, "idle") /\ (life[l].batch > 0 \/ Newest <= commits)
    /\ b <= Batches
    /\ offsets[b] = None  \* else Spark finds that another query has planned it, and ends
    /\ LET from == IF life[l].batch > 0 THEN life[l].reads[2] ELSE Reads(b - 1)[2]
           before == IF life[l].batch > 0 THEN life[l].reads ELSE Reads(b - 1)
       IN /\ \E to \in Ends(b, from) :
                /\ to <= MaxOffset
                /\ offsets' = [offsets EXCEPT ![b] = <<from, to>>]
                /\ Run(l, b, <<from, to>>, before)

--------------------------------------------------------------------------------------
(* Phase one: task attempts lease a name, and later begin, write and pre-commit: plugins/kafka/twopc_kafka/leases.py, twopc/participant.py *)

Locked(t) == {attempt[a].name : a \in {a \in DOMAIN attempt : a.task = t /\ attempt[a].pc = "leased"}}

\* As many as there are rounds, and one for a rival: an attempt always finds a name.
Names == 1 .. (Lives * Batches + 1)
LastUse(task, n) == IF <<task, n>> \in DOMAIN used THEN used[<<task, n>>] ELSE <<0, 0>>
UsedInOlderRound(a) == {n \in Names : Older(LastUse(a.task, n), Round(a))}

\* The names before there were leases: they follow from the batch's number, and come back after two batches.
Recurring(a) == IF a.n = 2 THEN 3 ELSE 1 + (a.batch % 2)

\* The names that an attempt may have: an older round used them last, and no living attempt holds them. Upholds
\* invariant 11.
Free(a) ==
    CASE Hole = "names come back by number" -> {Recurring(a)}
      [] Hole = "a name is leased twice" -> UsedInOlderRound(a)
      [] Hole = "a name of a newer round is taken" -> Names \ Locked(a.task)
      [] OTHER -> UsedInOlderRound(a) \ Locked(a.task)

Lease(a) ==
    /\ attempt[a].pc = "started"
    /\ attempt' = [attempt EXCEPT ![a].pc = "leased", ![a].name = Min(Free(a))]
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, tx, used, left>>

\* A speculative attempt, or one after another that was lost. It starts while the batch is written, which changes nothing
\* until it leases a name, at any later time. So this is one step. Attempts at a task are alike, so the first that leases
\* a name is called the first.
Rival(a) ==
    LET rival == [a EXCEPT !.n = 2] IN
    /\ a.n = 1 /\ attempt[a].pc # "started" /\ rival \notin DOMAIN attempt
    /\ Spend("rival")
    /\ attempt' = (rival :> [pc |-> "leased", name |-> Min(Free(rival)), reads |-> attempt[a].reads]) @@ attempt
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, tx, used>>

\* To begin ends what is open under the name, as Kafka's InitProducerId does. The vote follows in the same step: what can
\* come between shows as a transaction that is no longer open at the seal.
Write(a) ==
    LET name == <<a.task, attempt[a].name>>
        same == {t \in OpenNow : t[1].task = a.task /\ attempt[t[1]].name = attempt[a].name}
    IN
    /\ attempt[a].pc = "leased"
    /\ tx' = [t \in {a} \X Sinks |-> "open"] @@ [t \in DOMAIN tx |-> IF t \in same THEN "aborted" ELSE tx[t]]
    /\ attempt' = [attempt EXCEPT ![a].pc = "voted"]
    /\ used' = (name :> IF Older(LastUse(a.task, name[2]), Round(a)) THEN Round(a) ELSE LastUse(a.task, name[2])) @@ used
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, left>>

\* The driver has a vote of each task; of two attempts at a task, one wins. Then it seals: seal in twopc/protocol.py. A transaction
\* that is no longer open vetoes. Then a sweep rolls the round back, and the query ends with RoundAborted.
Seal(l) ==
    LET mine(t) == {a \in DOMAIN attempt : a.life = l /\ a.batch = life[l].batch /\ a.task = t /\ attempt[a].pc = "voted"}
        voters == {t \in Tasks : mine(t) # {}}
    IN
    /\ Goes(l, "write")
    /\ voters = Tasks \/ (Hole = "the decision does not wait for all votes" /\ voters # {})
    /\ \E chosen \in [voters -> UNION {mine(t) : t \in voters}] :
         LET votes == {chosen[t] : t \in voters} IN
         /\ \A t \in voters : chosen[t] \in mine(t)
         /\ IF (\A t \in Of(votes) : Open(t)) \/ Hole = "a seal does not veto"
            THEN To(l, [pc |-> "decide", votes |-> votes])
            ELSE To(l, [pc |-> "sweep", after |-> "ended"])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

--------------------------------------------------------------------------------------
(* The decision *)

Decision(l) == [kind |-> "decide", by |-> l, batch |-> life[l].batch, reads |-> life[l].reads, names |-> life[l].votes]

\* decide in twopc/protocol.py: the commit point. Upholds invariant 1.
Decide(l) ==
    /\ Goes(l, "decide")
    /\ CASE IsNewest(l) \/ Hole = "an older coordinator is not fenced" ->
              /\ Appended(l, Decision(l))
              /\ To(l, [pc |-> "commit", slot |-> Len(log) + 1, tail |-> Decision(l), due |-> Of(life[l].votes),
                         after |-> "record"])
         [] SlotIsPruned(l) /\ Hole = "a pruned slot counts" ->
              /\ UNCHANGED <<log, pruned>>
              /\ To(l, [pc |-> "commit", tail |-> Decision(l), due |-> Of(life[l].votes), after |-> "record"])
         [] OTHER -> UNCHANGED <<log, pruned>> /\ Stop(l, "ended")  \* Fenced
    /\ UNCHANGED <<flying, offsets, commits, attempt, tx, used, left>>

\* The store gave no answer. The append has happened, or may still happen, or never will. Nothing is committed or aborted on
\* it: the life ends with InDoubt, and the next one reads the log.
DecideUnanswered(l) ==
    /\ Goes(l, "decide") /\ l < Last  \* the last start is one without faults
    /\ Spend("unanswered")
    /\ \/ IsNewest(l) /\ Appended(l, Decision(l)) /\ UNCHANGED flying
       \/ flying' = flying \cup {[slot |-> life[l].slot + 1, entry |-> Decision(l)]} /\ UNCHANGED <<log, pruned>>
    /\ IF Hole = "a decision without an answer is rolled back"
       THEN To(l, [pc |-> "abort", listed |-> Of(life[l].votes), after |-> "ended"])
       ELSE Stop(l, "ended")
    /\ UNCHANGED <<offsets, commits, attempt, tx, used>>

\* A late put-if-absent: it fails if the slot is taken.
Land(put) ==
    /\ put \in flying
    /\ flying' = flying \ {put}
    /\ IF put.slot = Len(log) + 1 THEN Appended(put.entry.by, put.entry) ELSE UNCHANGED <<log, pruned>>
    /\ UNCHANGED <<offsets, commits, life, attempt, tx, used, left>>

\* foreachBatch has returned, and Spark records the batch.
Record(l) ==
    /\ Goes(l, "record")
    /\ commits' = Max({commits, life[l].batch})
    /\ To(l, [pc |-> "idle", after |-> "idle"])
    /\ UNCHANGED <<log, pruned, flying, offsets, attempt, tx, used, left>>

--------------------------------------------------------------------------------------
(* Faults *)

\* The target system rolls a transaction back by itself. A seal vetoes if too little time is left, so not between it and the
\* decision.
Timeout(t) ==
    /\ Open(t) /\ t[1].life < Last
    /\ ~\E l \in Numbers : Goes(l, "decide") /\ t[1] \in life[l].votes
    /\ Spend("timeout")
    /\ tx' = [tx EXCEPT ![t] = "timed out"]
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, attempt, used>>

\* The checkpoint falls back: a restored backup, or files that were not synced. A running life does not notice.
Fall(b) ==
    /\ b < Newest
    /\ Spend("fall")
    /\ offsets' = [c \in 1 .. Batches |-> IF c > b THEN None ELSE offsets[c]]
    /\ commits' = Min({commits, b})
    /\ UNCHANGED <<log, pruned, flying, life, attempt, tx, used>>

\* An operator runs `twopc checkpoint repair` for the newest life, which was refused, and starts it again.
Repair(l) ==
    LET newest == LogTail.batch IN
    /\ l = Max({m \in Numbers : life[m].pc # "new"} \cup {0})
    /\ \/ Goes(l, "refused")
       \/ Goes(l, "idle") /\ life[l].batch = 0 /\ Newest > commits /\ Newest > 1 /\ offsets[Newest - 1] = None
    /\ newest > 0
    /\ offsets' = [b \in 1 .. Batches |-> IF b > newest THEN None ELSE
                       IF Kept_(b) # {} THEN log[Max(Kept_(b))].reads ELSE offsets[b]]
    /\ commits' = newest - 1
    /\ life' = [life EXCEPT ![l] = [@ EXCEPT !.pc = "idle", !.batch = 0]]
    /\ UNCHANGED <<log, pruned, flying, attempt, tx, used, left>>

--------------------------------------------------------------------------------------

Steps(l) ==
    \/ OpenLog(l) \/ List(l) \/ Verify(l) \/ Abort(l) \/ Rest(l) \/ Again(l) \/ Plan(l)
    \/ Seal(l) \/ Decide(l) \/ Record(l)
    \/ \E t \in life[l].due : Commit(l, t)

Next ==
    \/ \E l \in Numbers : Steps(l) \/ DecideUnanswered(l) \/ Repair(l)
                          \/ (\E t \in life[l].due : BelieveStale(l, t))
    \/ \E a \in DOMAIN attempt : Lease(a) \/ Rival(a) \/ Write(a)
    \/ \E put \in flying : Land(put)
    \/ \E t \in DOMAIN tx : Timeout(t)
    \/ \E b \in 0 .. Batches : Fall(b)

Spec == Init /\ [][Next]_vars

--------------------------------------------------------------------------------------
(* What must hold. The numbers are those of the invariants in docs/internals/architecture.md. *)

\* 1: nothing is visible before its decision is in the log.
VisibleIsDecided == \A t \in DOMAIN tx : tx[t] = "committed" => t[1] \in Decided

\* 2: what is about to be decided is still open.
OpenWhenDecided == \A l \in Numbers : Goes(l, "decide") /\ IsNewest(l) => \A t \in Of(life[l].votes) : Open(t)

\* 5: only a target system itself can roll a decided transaction back.
DecidedStays == \A t \in DOMAIN tx : t[1] \in Decided => tx[t] \in {"open", "committed", "timed out"}

\* The attempts that made a task's share of record o visible in a sink.
Visible(s, task, o) ==
    {a \in DOMAIN attempt : /\ a.task = task
                            /\ attempt[a].reads[1] < o /\ o <= attempt[a].reads[2]
                            /\ <<a, s>> \in DOMAIN tx /\ tx[<<a, s>>] = "committed"}

\* 2: exactly once. This half holds at any moment,
NothingDoubled == \A s \in Sinks, t \in Tasks, o \in 1 .. MaxOffset : Cardinality(Visible(s, t, o)) <= 1

AllVisible(o) == \A s \in Sinks, t \in Tasks : Visible(s, t, o) # {}

\* and this half for everything that the checkpoint has recorded. After a fall it may have recorded a batch with other
\* offsets than the decided ones: a running driver records its batch, and another has planned the same number anew.
NothingLost ==
    left.fall = Falls =>
        \A b \in 1 .. commits : offsets[b] = None \/ \A o \in 1 .. offsets[b][2] : AllVisible(o)

\* So no batch is written that follows such a one. 9: everything before a new batch is visible.
NothingSkipped ==
    \A l \in Numbers : Goes(l, "write") /\ IsNewest(l) => \A o \in 1 .. life[l].reads[1] : AllVisible(o)

\* 2: a batch is decided only when all of the one before is visible, and it begins where that one ends.
InOrder ==
    \A i, j \in Decisions :
        i < j => /\ \A t \in Of(log[i].names) : tx[t] = "committed"
                 /\ log[j].batch > log[i].batch
                 /\ log[j].batch = log[i].batch + 1 => log[j].reads[1] = log[i].reads[2]

\* 4: what is decided becomes visible, unless its target system has rolled it back; then a query stops loudly.
Lost == \E l \in Numbers : Goes(l, "lost")
EventuallyVisible == <>[](Lost \/ \A t \in Of(Decided) : tx[t] = "committed")

\* 12: nothing stays open, which would hold back the readers of a topic. As a life that has more to write sweeps after its
\* next batch, only lives that are through count.
EventuallyNothingOpen == <>[](OpenNow = {} \/ life[Last].batch # Batches)

\* Restarts are fair: the last life goes on, with the operator's help, and so do its attempts.
Fair ==
    /\ WF_vars(Steps(Last))
    /\ WF_vars(Repair(Last))
    /\ WF_vars(\E a \in DOMAIN attempt : a.life = Last /\ (Lease(a) \/ Write(a)))
FairSpec == Spec /\ Fair

(* What steps and promises still depend on. TLC takes states that differ only in the rest for one:

   - A transaction that has ended never opens again, and a sweep aborts only what is open.
   - A name is compared with those of open transactions and of leases. What an attempt reads counts for what is visible,
     and for a rival that may still start.
   - The rounds to come only grow newer, so a name that is older than all of them stays free for them. (A life that is
     refused has <<l, 1>> here, which is older than what it writes next. That only keeps more.)

   Defects break some of these arguments, so with a Hole TLC tells all states apart. *)

Ended(a, statuses) == attempt[a].pc = "voted" /\ \A s \in Sinks : tx[<<a, s>>] \notin statuses
MayHaveRival(a) == left.rival > 0 /\ a.n = 1

\* Rounds in which a name may still be leased, or older ones. A name that only rounds before these have used is like new.
ToCome ==
    {Round(a) : a \in {a \in DOMAIN attempt : attempt[a].pc = "started" \/ MayHaveRival(a)}}
    \cup {<<l, IF Goes(l, "refused") THEN 1 ELSE life[l].batch + 1>> : l \in {l \in Numbers : life[l].pc \notin {"ended", "lost"}}}

Relevant == <<
    log, pruned, flying, offsets, commits, tx, left,
    [l \in Numbers |-> [life[l] EXCEPT !.listed = {t \in @ : Open(t)}]],
    [a \in DOMAIN attempt |->
        [attempt[a] EXCEPT !.name = IF Ended(a, {"open"}) THEN 0 ELSE @,
                           !.reads = IF Ended(a, {"open", "committed"}) /\ ~MayHaveRival(a) THEN None ELSE @]],
    [n \in {n \in DOMAIN used : \E r \in ToCome : ~Older(used[n], r)} |-> used[n]] >>

Symmetric == Permutations(Tasks) \cup Permutations(Sinks)
======================================================================================
