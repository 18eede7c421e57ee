------------------------------------ MODULE trace ------------------------------------
(* Checks recorded runs of the code: every event must be a step of steps.tla, and keep the promises. The module
   ``recorded`` has the events. TLC prints each event that is a step, as number of trace and of event. A trace of which it
   does not print every event is rejected, at the first that is missing. *)
EXTENDS steps, recorded

VARIABLES trace, at

Event == Traces[trace][at]

\* The code knows of what a batch follows only where that ends.
Before(l) ==
    LET tail == life[l].tail IN IF Event.follows \in {-1, tail.reads[2]} THEN tail.reads ELSE <<-1, Event.follows>>

Step ==
    CASE Event.is = "open" -> OpenOne(Event.life, Event.carries > 0)
      [] Event.is = "ask to commit" -> IsDue(Event.of) /\ UNCHANGED vars
      [] Event.is = "commit" -> CommitOne(Event.of)
      [] Event.is = "lost" -> Lose(Event.life)
      [] Event.is = "complete in sink" -> IsWhole(Event.life) /\ UNCHANGED vars
      [] Event.is = "list" -> ListIn(Event.life, Event.sink)
      [] Event.is = "found" -> Find(Event.life, Event.of)
      [] Event.is = "believe a stale broker" -> BelieveStaleBroker(Event.life, Event.sink, Event.besides)
      [] Event.is = "prune" -> Prune(Event.through)
      [] Event.is = "read the log" -> See(Event.life)
      [] Event.is = "fenced" -> LearnFenced(Event.life)
      \* It may run one more batch, as one that has not learned it: it can decide nothing.
      [] Event.is = "fenced at rest" -> ~IsNewest(Event.life) /\ UNCHANGED vars
      [] Event.is = "abort" -> AbortOne(Event.of)
      [] Event.is = "run" -> Receive(Event.life, Event.batch, Event.reads, Before(Event.life), Event.tasks, Event.what)
      [] Event.is = "start" -> StartOne(Event.attempt)
      [] Event.is = "lease" -> LeaseOne(Event.attempt, Event.sink, Event.name, Event.turn)
      [] Event.is = "fence" -> FenceOne(Event.attempt, Event.of)
      [] Event.is = "begin" -> BeginOne(Event.attempt, Event.sink)
      [] Event.is = "begin again" -> BeginAgain(Event.attempt, Event.sink)
      [] Event.is = "roll back" -> RollBackOne(Event.attempt, Event.sink)
      [] Event.is = "answered" -> Answer(Event.attempt, Event.sink)
      [] Event.is = "vote" -> Vote(Event.attempt)
      [] Event.is = "seal" -> SealIn(Event.life, Event.sink, Event.votes)
      [] Event.is = "decide" -> /\ Decide(Event.life) /\ IsNewest(Event.life)
                                /\ life[Event.life].batch = Event.batch /\ life[Event.life].votes = Event.votes
                                /\ life[Event.life].reads[2] = Event.end
      [] Event.is = "complete" -> Complete(Event.life)
      [] Event.is = "close" -> IsSwept(Event.life) /\ Complete(Event.life)
      [] Event.is = "rested" -> IsSwept(Event.life) /\ Event.unresolved = 0 /\ UNCHANGED vars
      [] Event.is = "ran" -> At(Event.life) = "record" /\ UNCHANGED vars
      [] Event.is = "note" -> life[Event.life].batch = Event.batch /\ Note(Event.life)
      [] Event.is = "time out" -> TimeOutOne(Event.of) /\ UNCHANGED left

\* Of two transactions that write the same records of a task to a sink, at most one is visible.
Once ==
    \A t, u \in {t \in DOMAIN tx : tx[t] = "committed"} :
        t[2] = u[2] /\ t[1].task = u[1].task /\ t # u =>
            LET r == attempt[t[1]].reads  q == attempt[u[1]].reads IN r[2] <= q[1] \/ q[2] <= r[1]

Promises == VisibleIsDecided /\ DecidedStays /\ InOrder /\ Once
MayBreakOne == Event.is \in {"commit", "abort", "fence", "roll back", "decide"}

TraceInit == InitWith(Life) /\ trace \in DOMAIN Traces /\ at = 1
TraceNext ==
    /\ at <= Len(Traces[trace])
    /\ "life" \in DOMAIN Event => Event.life \in Numbers
    /\ Step
    /\ MayBreakOne => Promises'
    /\ at' = at + 1 /\ UNCHANGED trace
    /\ PrintT(<<"is a step", trace, at>>)
TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace, at>>
======================================================================================
