------------------------------------ MODULE steps ------------------------------------
(* The protocol of twopc.tla in the steps of the code. One step of twopc.tla has several effects, and each effect is a
   step here: a task begins one transaction per sink, and votes later; a sweep goes from sink to sink, and aborts one
   transaction at a time; a batch is sealed one sink at a time. Every step has parameters for what twopc.tla leaves open,
   so that a recorded event determines a step: see trace.tla. StepsSpec has all behaviors with these steps.

   OpenLog, Decide and Recognized are those of twopc.tla. A life stays where it is until its next step: At(l) says where
   the steps so far have brought it. *)
EXTENDS twopc

Life == NewLife @@ [swept |-> {}, approved |-> {}, sealed |-> {}, tasks |-> {}, plan |-> <<>>]

\* An open entry carries on what is decided and perhaps not committed.
OpenOne(l, carries) == OpenLog(l) /\ (carries \/ \A t \in Of(LogTail.names) : tx[t] = "committed")

Prune(through) ==
    /\ pruned < through /\ through < Len(log)
    /\ pruned' = through
    /\ UNCHANGED <<log, flying, offsets, commits, life, attempt, tx, used, left>>

--------------------------------------------------------------------------------------
(* Phase two *)

\* What is due is committed, by whichever life.
IsWhole(l) == Goes(l, "commit") /\ \A t \in life[l].due : tx[t] = "committed"

IsDue(t) == \E l \in Numbers : Goes(l, "commit") /\ t \in life[l].due

\* Requests arrive at any time, also when the life that sent them has gone on or is dead. So what is due stays so.
CommitOne(t) ==
    /\ Open(t) /\ IsDue(t)
    /\ tx' = [tx EXCEPT ![t] = "committed"]
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, attempt, used, left>>

Lose(l) ==
    /\ Goes(l, "commit") /\ \E t \in life[l].due : tx[t] \notin {"open", "committed"}
    /\ To(l, [pc |-> "lost"])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

--------------------------------------------------------------------------------------
(* The sweep *)

\* Where a life is. Its sweep is over when it has listed every sink, and aborted what it has listed.
At(l) ==
    IF Goes(l, "sweep") /\ life[l].swept = Sinks /\ \A t \in life[l].listed : ~Open(t) THEN life[l].after ELSE life[l].pc

\* A round that has failed is swept, and its life decides nothing more. A life may rest at any time between batches.
ListIn(l, s) ==
    LET begins == IsWhole(l) \/ Goes(l, "write") \/ Goes(l, "seal")
        fails == Goes(l, "write") \/ Goes(l, "seal")
        isAtRest == At(l) \in {"idle", "record"}
    IN
    /\ begins \/ isAtRest \/ Goes(l, "sweep")
    /\ To(l, [pc |-> IF isAtRest THEN At(l) ELSE "sweep",
              after |-> IF fails THEN "ended" ELSE life[l].after,
              swept |-> IF begins THEN {s} ELSE life[l].swept \cup {s},
              listed |-> {t \in life[l].listed : t[2] # s} \cup {t \in Undecided(l) : t[2] = s}])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

\* What a sink has listed, when it returns. It may have begun since.
Find(l, found) ==
    /\ To(l, [listed |-> life[l].listed \cup {t \in found : Open(t) /\ t[1] \notin life[l].tail.names}])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

\* A broker that is cut off from the others does not know a transaction, and the sweep takes that for an answer. The
\* transaction stays open until a later sweep. That is safe, as nothing is aborted or committed on it.
BelieveStaleBroker(l, s, besides) ==
    /\ To(l, [listed |-> {t \in life[l].listed : t[2] # s \/ t \in besides}])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

\* The log is read again: what was listed before may be aborted from now on.
See(l) ==
    /\ ~Goes(l, "new") /\ IsNewest(l)
    /\ To(l, [approved |-> life[l].approved \cup life[l].listed])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

LearnFenced(l) ==
    /\ ~Goes(l, "new") /\ ~IsNewest(l)
    /\ To(l, [pc |-> "ended"])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

AbortOne(t) ==
    /\ Open(t) /\ \E l \in Numbers : t \in life[l].approved
    /\ tx' = [tx EXCEPT ![t] = "aborted"]
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, attempt, used, left>>

--------------------------------------------------------------------------------------
(* A batch *)

\* Spark has planned the batch before the life opens the log, so its reads and what it follows are parameters.
Receive(l, b, reads, before, tasks, what) ==
    /\ At(l) \in {"idle", "record"}
    /\ Recognized(l, b, reads, before) = what
    /\ To(l, [pc |-> what, batch |-> b, reads |-> reads, votes |-> {}, sealed |-> {}, tasks |-> tasks])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

\* Any number of attempts at a task, while the batch is written. They may go on at any time.
StartOne(a) ==
    /\ a.life \in Numbers /\ Goes(a.life, "write") /\ life[a.life].batch = a.batch /\ a.task \in life[a.life].tasks
    /\ a \notin DOMAIN attempt
    /\ attempt' = (a :> [pc |-> "started", names |-> <<>>, turns |-> <<>>, answered |-> {}, past |-> {},
                          reads |-> life[a.life].reads]) @@ attempt
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, tx, used, left>>

Starts(a) == a \in DOMAIN attempt /\ attempt[a].pc = "started"

\* Names of which not every request is answered: nobody else may have them. Names here differ between sinks, and tasks of
\* a machine share them.
Held == UNION {attempt[a].past \cup {attempt[a].names[s] : s \in DOMAIN attempt[a].names \ attempt[a].answered} :
                  a \in DOMAIN attempt}

\* Upholds invariant 11.
LeaseOne(a, s, n, turn) ==
    /\ Starts(a)
    /\ n \notin Held
    /\ n \in DOMAIN used => Older(used[n], Round(a))
    /\ attempt' = [attempt EXCEPT ![a].names = (s :> n) @@ @, ![a].turns = (s :> turn) @@ @,
                                  ![a].past = IF s \in DOMAIN attempt[a].names THEN @ \cup {attempt[a].names[s]} ELSE @]
    /\ used' = (n :> Round(a)) @@ used
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, tx, left>>

Has(a, s) == a \in DOMAIN attempt /\ s \in DOMAIN attempt[a].names \ attempt[a].answered

\* What the target system knows is the name and a turn, which follows from the batch's number.
SameName(a, t) ==
    LET s == t[2]  other == attempt[t[1]] IN
    /\ s \in DOMAIN attempt[a].names /\ s \in DOMAIN other.names
    /\ attempt[a].names[s] = other.names[s] /\ attempt[a].turns[s] = other.turns[s]

\* To begin ends what is open under the name, as Kafka's InitProducerId does.
FenceOne(a, t) ==
    /\ Open(t) /\ Has(a, t[2]) /\ SameName(a, t)
    /\ tx' = [tx EXCEPT ![t] = "fenced"]
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, attempt, used, left>>

\* Transactions of systems that forget a transaction with its end have names that no other has, and lease none.
BeginOne(a, s) ==
    /\ Starts(a) /\ <<a, s>> \notin DOMAIN tx
    /\ s \in DOMAIN attempt[a].names => Has(a, s) /\ \A t \in OpenNow : t[2] = s => ~SameName(a, t)
    /\ tx' = (<<a, s>> :> "open") @@ tx
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, attempt, used, left>>

\* A record that arrives late opens the transaction again, unless its epoch has passed.
BeginAgain(a, s) ==
    /\ Has(a, s) /\ <<a, s>> \in DOMAIN tx /\ tx[<<a, s>>] = "aborted"
    /\ \A t \in OpenNow : t[2] = s => ~SameName(a, t)
    /\ tx' = [tx EXCEPT ![<<a, s>>] = "open"]
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, attempt, used, left>>

\* An attempt that has failed rolls back what it has begun, and nothing that it has voted for.
RollBackOne(a, s) ==
    /\ Starts(a) /\ Open(<<a, s>>)
    /\ tx' = [tx EXCEPT ![<<a, s>>] = "aborted"]
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, attempt, used, left>>

\* Every request under the name is answered, so it may be leased again.
Answer(a, s) ==
    /\ Has(a, s)
    /\ attempt' = [attempt EXCEPT ![a].answered = @ \cup {s}]
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, tx, used, left>>

Vote(a) ==
    /\ Starts(a) /\ \A s \in Sinks : <<a, s>> \in DOMAIN tx
    /\ attempt' = [attempt EXCEPT ![a].pc = "voted"]
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, tx, used, left>>

\* A sink's seal, at the moment when it looks at its transactions.
SealIn(l, s, votes) ==
    /\ Goes(l, "write") \/ (Goes(l, "seal") /\ life[l].votes = votes)
    /\ votes \subseteq DOMAIN attempt
    /\ \A a \in votes : a.life = l /\ a.batch = life[l].batch /\ attempt[a].pc = "voted" /\ Open(<<a, s>>)
    /\ {a.task : a \in votes} = life[l].tasks /\ Cardinality(votes) = Cardinality(life[l].tasks)
    /\ LET sealed == life[l].sealed \cup {s} IN
           To(l, [pc |-> IF sealed = Sinks THEN "decide" ELSE "seal", votes |-> votes, sealed |-> sealed])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

\* An entry without a decision: all that is decided is committed.
Complete(l) ==
    /\ ~Goes(l, "new") /\ IsNewest(l)
    /\ \A t \in Of(LogTail.names) : tx[t] = "committed"
    /\ UNCHANGED vars

\* Since the last batch was recorded, every sink was swept. So a life rests, and ends.
IsSwept(l) == life[l].swept = Sinks /\ \A t \in life[l].listed : ~Open(t)

Note(l) ==
    /\ At(l) = "record"
    /\ commits' = Max({commits, life[l].batch})
    /\ To(l, [pc |-> "idle", after |-> "idle", swept |-> {}])
    /\ UNCHANGED <<log, pruned, flying, offsets, attempt, tx, used, left>>

\* Unlike in twopc.tla, also between seal and decision: the world is not on the coordinator's side.
TimeOutOne(t) ==
    /\ Open(t)
    /\ tx' = [tx EXCEPT ![t] = "timed out"]
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, attempt, used>>
--------------------------------------------------------------------------------------
(* Every behavior with these steps, so that TLC checks the promises with them, too. A driver reads the checkpoint, and
   plans its first batch, before it opens the log. Meanwhile another may do the same. *)

Knows(l, b, reads, before) == To(l, [plan |-> <<b, reads, before>>])

PlanFrom(l, b, from, before) ==
    /\ b <= Batches /\ offsets[b] = None
    /\ \E to \in {from + 1, from + 2} :
           /\ to <= MaxOffset
           /\ offsets' = [offsets EXCEPT ![b] = <<from, to>>]
           /\ Knows(l, b, <<from, to>>, before)

StartDriver(l) ==
    /\ Goes(l, "new") /\ life[l].plan = <<>>
    /\ IF Newest > commits
       THEN /\ Newest > 1 => offsets[Newest - 1] # None
            /\ Knows(l, Newest, offsets[Newest], Reads(Newest - 1)) /\ UNCHANGED offsets
       ELSE PlanFrom(l, Newest + 1, Reads(Newest)[2], Reads(Newest))
    /\ UNCHANGED <<log, pruned, flying, commits, attempt, tx, used, left>>

PlanNext(l) ==
    /\ At(l) = "idle" /\ life[l].batch > 0 /\ life[l].plan = <<>>
    /\ PlanFrom(l, life[l].batch + 1, life[l].reads[2], life[l].reads)
    /\ UNCHANGED <<log, pruned, flying, commits, attempt, tx, used, left>>

ReceivePlanned(l) ==
    LET plan == life[l].plan  what == Recognized(l, plan[1], plan[2], plan[3]) IN
    /\ plan # <<>> /\ At(l) = "idle"
    /\ To(l, [pc |-> what, batch |-> plan[1], reads |-> plan[2], votes |-> {}, sealed |-> {}, tasks |-> Tasks,
              plan |-> <<>>])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

Attempts ==
    {[life |-> l, batch |-> life[l].batch, task |-> t, n |-> n] : l \in Numbers, t \in Tasks, n \in 1 .. Rivals + 1}

LeaseFirst(a, s) ==
    LET names == {<<s, n>> : n \in 1 .. Cardinality(DOMAIN attempt)}  \* as many as there are attempts
        free == {name \in names \ Held : name \in DOMAIN used => Older(used[name], Round(a))}
        first == CHOOSE name \in free : \A other \in free : name[2] <= other[2]
    IN s \notin DOMAIN attempt[a].names /\ LeaseOne(a, s, first, 0)

StepsOf(a) ==
    \/ Vote(a)
    \/ \E s \in Sinks : \/ LeaseFirst(a, s) \/ RollBackOne(a, s) \/ (Has(a, s) /\ BeginOne(a, s))
                        \/ (<<a, s>> \in DOMAIN tx /\ Answer(a, s))
    \/ \E t \in OpenNow : <<a, t[2]>> \notin DOMAIN tx /\ FenceOne(a, t)

StepsOfLife(l) ==
    \/ StartDriver(l) \/ PlanNext(l) \/ ReceivePlanned(l)
    \/ (life[l].plan # <<>> /\ OpenOne(l, TRUE))
    \/ Lose(l) \/ See(l) \/ LearnFenced(l) \/ Note(l) \/ (IsNewest(l) /\ Decide(l))
    \/ \E s \in Sinks : ListIn(l, s) \/ \E votes \in SUBSET {a \in DOMAIN attempt : a.life = l} : SealIn(l, s, votes)

StepsNext ==
    \/ \E l \in Numbers : StepsOfLife(l)
    \/ \E a \in Attempts \ DOMAIN attempt : StartOne(a)
    \/ \E a \in DOMAIN attempt : StepsOf(a)
    \/ \E t \in DOMAIN tx : CommitOne(t) \/ AbortOne(t) \/ (Spend("timeout") /\ TimeOutOne(t))

StepsSpec == InitWith(Life) /\ [][StepsNext]_vars
======================================================================================
