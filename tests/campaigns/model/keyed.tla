------------------------------------ MODULE keyed ------------------------------------
(* Sinks with keys: a commit replaces and deletes rows, so the order of commits shows. The steps are those of twopc.tla.
   A commit that is repeated finds in the target system that it was applied, and changes nothing. *)
EXTENDS twopc

VARIABLE applied  \* sink |-> the batch whose changes were applied last

Committed(s, status) == {t \in DOMAIN status : t[2] = s /\ status[t] = "committed"}
Newest_(transactions) == Max({t[1].batch : t \in transactions} \cup {0})

\* What is committed for the first time is applied.
Apply ==
    applied' = [s \in Sinks |->
        LET first == Committed(s, tx') \ Committed(s, tx) IN IF first = {} THEN applied[s] ELSE Newest_(first)]

ApplyAgain(l, t) ==
    /\ Hole = "a repeated commit applies its changes again"
    /\ t \in Committed(t[2], tx)
    /\ Commit(l, t)
    /\ applied' = [applied EXCEPT ![t[2]] = t[1].batch]

KeyedNext == (Next /\ Apply) \/ \E l \in Numbers : \E t \in life[l].due : ApplyAgain(l, t)
KeyedSpec == Init /\ applied = [s \in Sinks |-> 0] /\ [][KeyedNext]_<<vars, applied>>

\* 2: the last changes in a sink are those of the newest batch that is committed there. So `applied` never falls.
AppliedInOrder == \A s \in Sinks : applied[s] = Newest_(Committed(s, tx))
======================================================================================
