----------------------------------- MODULE observed -----------------------------------
(* Checks what was observed of a query on real systems: every event must be a step of steps.tla, and keep the promises.
   The module ``recorded`` has the events. TLC prints each event that is a step, as number of trace and of event.

   Unlike in the simulation (trace.tla), nobody sees everything. What tasks do, what target systems do by themselves, and
   what a request has done whose caller is dead, is *hidden*. TLC finds hidden steps: only those of a transaction that the
   next event names, or lacks, and only when this event is no step without them. As nothing else depends on a hidden step,
   it may be taken as late as that. *)
EXTENDS steps, recorded

VARIABLES trace, at

Event == Traces[trace].events[at]
EndsByItself(s) == s \in Traces[trace].end_by_themselves

\* What a sink has open when a sweep begins to look at it, and the transactions that the life has asked to commit.
ObservedLife == Life @@ [looked |-> {}, asked |-> {}]

--------------------------------------------------------------------------------------
(* The log *)

\* Beside what is decided, an entry carries on what the newest decided batch has read.
OpenObserved(l, names, reads) ==
    /\ names \in {{}, LogTail.names} /\ reads = LogTail.reads
    /\ OpenOne(l, names # {})

DecideObserved(l, batch, reads, names) ==
    /\ IsNewest(l) /\ Decide(l)
    /\ life[l].batch = batch /\ life[l].reads = reads /\ life[l].votes = names

\* The target system had rolled t back after its decision. Its records were written again, in u, which takes its place.
Amend(l, t, u) ==
    /\ Goes(l, "commit") /\ IsNewest(l) /\ t \in life[l].due
    /\ tx[t] = "timed out" /\ Open(u) /\ u[1] \notin Decided
    /\ tx' = [other \in DOMAIN tx \ {u} |-> IF other = t THEN "open" ELSE tx[other]]
    /\ life' = [m \in Numbers |-> [life[m] EXCEPT !.asked = @ \ {t}]]  \* nobody has asked for u
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, used, left>>

CompleteObserved(l, reads) == reads = LogTail.reads /\ Complete(l)

--------------------------------------------------------------------------------------
(* The sweep: ListIn of steps.tla in two, as a call takes time *)

Look(l, s) ==
    /\ ~Goes(l, "new")
    /\ To(l, [looked |-> {t \in OpenNow : t[2] = s}])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

\* It lacks nothing that was open all the time.
Lacking(l, found) == {t \in life[l].looked : Open(t) /\ t \notin found}
Unknown(found) == found \ DOMAIN tx

\* What was listed is to be aborted, whether or not it has ended since: another life may have aborted it.
\* A round may fail when all sinks of the trace are sealed: the log refuses its decision, or a sink that the trace lacks
\* has a veto.
Listed(l, s, found) ==
    LET fails == life[l].pc \in {"write", "seal", "decide"}
        begins == IsWhole(l) \/ fails
        isAtRest == At(l) \in {"idle", "record"}
    IN
    /\ begins \/ isAtRest \/ Goes(l, "sweep")
    /\ Lacking(l, found) = {} /\ Unknown(found) = {}
    /\ To(l, [pc |-> IF isAtRest THEN At(l) ELSE "sweep",
              after |-> IF fails THEN "ended" ELSE life[l].after,
              swept |-> IF begins THEN {s} ELSE life[l].swept \cup {s},
              listed |-> {t \in life[l].listed : t[2] # s} \cup {t \in found : t[1] \notin life[l].tail.names}])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

\* An abort is requested. Upholds invariant 5.
AskToAbort(l, t) == t \in life[l].approved /\ t[1] \notin Decided /\ UNCHANGED vars

\* It was answered: the transaction is not open any more, whoever has ended it.
Aborted(t) ==
    \/ AbortOne(t)
    \/ tx[t] \in {"aborted", "timed out"} /\ UNCHANGED vars

\* A commit is requested. Upholds invariant 1.
AskToCommit(l, t) ==
    /\ IsDue(t)
    /\ To(l, [asked |-> life[l].asked \cup {t}])
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

\* A commit was answered: the transaction is committed, whoever has done it.
Committed(t) ==
    \/ CommitOne(t)
    \/ tx[t] = "committed" /\ UNCHANGED vars

\* The query stops for a lost transaction. A driver that was paused may do so when a newer one has replaced it.
LoseObserved(l, t) ==
    IF IsNewest(l) THEN ~Open(t) /\ Lose(l)
    ELSE To(l, [pc |-> "lost"]) /\ UNCHANGED <<log, pruned, flying, offsets, commits, attempt, tx, used, left>>

--------------------------------------------------------------------------------------
(* Hidden steps *)

\* An attempt that no vote names. It was started in whichever round.
IsStranger(a) == a.life = 0

StartStranger(a) ==
    /\ \E l \in Numbers : life[l].batch > 0
    /\ attempt' = (a :> [pc |-> "started", names |-> <<>>, turns |-> <<>>, answered |-> {}, past |-> {}, reads |-> None])
                    @@ attempt
    /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, tx, used, left>>

Begin(t) ==
    /\ t \notin DOMAIN tx
    /\ CASE t[1] \in DOMAIN attempt -> BeginOne(t[1], t[2])
         [] IsStranger(t[1]) -> StartStranger(t[1])
         [] OTHER -> StartOne(t[1])

IsSealed(a) == \E l \in Numbers : Goes(l, "decide") /\ a \in life[l].votes

\* A decided transaction ends only in a target system that rolls back by itself, which may happen before the decision. One
\* that is voted for may also end when another begins under its name. An attempt that has not voted may roll back.
End(t) ==
    \/ (t[1] \in Decided \/ IsSealed(t[1])) /\ EndsByItself(t[2]) /\ TimeOutOne(t) /\ UNCHANGED left
    \/ AbortOne(t)
    \/ /\ Open(t) /\ t[1] \notin Decided
       /\ EndsByItself(t[2]) \/ t[2] \in Traces[trace].take_over \/ attempt[t[1]].pc # "voted"
       /\ tx' = [tx EXCEPT ![t] = "aborted"]
       /\ UNCHANGED <<log, pruned, flying, offsets, commits, life, attempt, used, left>>

\* A commit whose answer is not on record. Its request always is.
CommitAsked(t) == (\E l \in Numbers : t \in life[l].asked) /\ CommitOne(t)

First(set) == CHOOSE t \in set : TRUE

Hidden ==
    CASE Event.is = "vote" ->
           LET missing == {s \in Sinks : <<Event.attempt, s>> \notin DOMAIN tx}
           IN missing # {} /\ Begin(<<Event.attempt, First(missing)>>)
      [] Event.is = "listed" ->
           LET lacking == Lacking(Event.life, Event.found)  unknown == Unknown(Event.found)
           IN \/ lacking # {} /\ (End(First(lacking)) \/ CommitAsked(First(lacking)))
              \/ lacking = {} /\ unknown # {} /\ Begin(First(unknown))
      [] Event.is = "lost" -> Open(Event.of) /\ End(Event.of)
      [] Event.is = "amend" -> (Open(Event.of) /\ End(Event.of)) \/ Begin(Event.by)
      [] OTHER -> FALSE

--------------------------------------------------------------------------------------

\* What no later event names is forgotten, and so are entries that no later batch is compared with. Else each state would
\* be as large as the trace is long.
Forget(attempts, entries) ==
    LET stay == {i \in DOMAIN log : log[i].names \ attempts # {}}
        first == Min({Len(log) - entries} \cup {i - 1 : i \in stay})
        Without(set) == {t \in set : t[1] \notin attempts}
    IN
    /\ log' = [i \in 1 .. Len(log) - first |-> [log[i + first] EXCEPT !.names = @ \ attempts]]
    /\ tx' = [t \in Without(DOMAIN tx) |-> tx[t]]
    /\ attempt' = [a \in DOMAIN attempt \ attempts |-> attempt[a]]
    /\ life' = [l \in Numbers |->
                  [life[l] EXCEPT !.slot = @ - first, !.tail.names = @ \ attempts, !.votes = @ \ attempts,
                                  !.due = Without(@), !.listed = Without(@), !.approved = Without(@),
                                  !.looked = Without(@), !.asked = Without(@)]]
    /\ UNCHANGED <<pruned, flying, offsets, commits, used, left>>

Step ==
    CASE Event.is = "open" -> OpenObserved(Event.life, Event.names, Event.reads)
      [] Event.is = "run" -> Receive(Event.life, Event.batch, Event.reads,
                                     IF Event.follows = None THEN life[Event.life].tail.reads ELSE Event.follows,
                                     Event.tasks, Event.what)
      [] Event.is = "vote" -> Vote(Event.attempt)
      [] Event.is = "seal" -> SealIn(Event.life, Event.sink, Event.votes)
      [] Event.is = "decide" -> DecideObserved(Event.life, Event.batch, Event.reads, Event.names)
      [] Event.is = "amend" -> Amend(Event.life, Event.of, Event.by)
      [] Event.is = "ask to commit" -> AskToCommit(Event.life, Event.of)
      [] Event.is = "commit" -> Committed(Event.of)
      [] Event.is = "lost" -> LoseObserved(Event.life, Event.of)
      [] Event.is = "complete in sink" -> (\A t \in life[Event.life].due : t[2] = Event.sink => tx[t] = "committed")
                                          /\ UNCHANGED vars
      [] Event.is = "list" -> Look(Event.life, Event.sink)
      [] Event.is = "listed" -> Listed(Event.life, Event.sink, Event.found)
      [] Event.is = "read the log" -> See(Event.life)
      [] Event.is = "ask to abort" -> AskToAbort(Event.life, Event.of)
      [] Event.is = "abort" -> Aborted(Event.of)
      [] Event.is = "fenced" -> LearnFenced(Event.life)
      [] Event.is = "fenced at rest" -> ~IsNewest(Event.life) /\ UNCHANGED vars
      [] Event.is = "complete" -> CompleteObserved(Event.life, Event.reads)
      [] Event.is = "close" -> IsSwept(Event.life) /\ CompleteObserved(Event.life, Event.reads)
      [] Event.is = "rested" -> IsSwept(Event.life) /\ UNCHANGED vars
      [] Event.is = "ran" -> Note(Event.life)
      [] Event.is = "forget" -> Forget(Event.attempts, Event.entries)
      [] OTHER -> FALSE

\* The promises that an event could break.
Promises ==
    CASE Event.is = "commit" -> VisibleIsDecided'
      [] Event.is = "abort" -> DecidedStays'
      [] Event.is = "decide" -> InOrder'
      [] OTHER -> TRUE

Observe ==
    /\ "life" \in DOMAIN Event => Event.life \in Numbers
    /\ Step
    /\ Promises
    /\ at' = at + 1 /\ UNCHANGED trace
    /\ PrintT(<<"is a step", trace, at>>)

ObservedInit == InitWith(ObservedLife) /\ trace \in DOMAIN Traces /\ at = 1
ObservedNext == at <= Len(Traces[trace].events) /\ (Observe \/ (Hidden /\ UNCHANGED <<trace, at>>))
ObservedSpec == ObservedInit /\ [][ObservedNext]_<<vars, trace, at>>
======================================================================================
