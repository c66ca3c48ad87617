/* Who pays for a call that is not answered, and what is tried next: one breaker per
   topic and one for the lane, and calls that get smaller.

   An answered failure says itself whose it is: of the row, the topic or the broker.
   Silence doesn't. Here: what silence costs, and how a backlog leaves after it.

   Modelled: one lane with C calls at once, one or two. Slots hold rows of different keys, the
   lower the older; the first half is of topic 0, the rest of topic 1. The rows in the
   first POISONS slots are never answered, and each of their calls may be silent as a
   whole. A published row's slot may get a new row at any time. The broker goes away,
   between calls or in the middle of one, or topic 0 does, OUTAGES times; both come back
   at any time. The lane's process starts anew RESTARTS times. While topic 0 is away its
   slots may turn out to be other keys: its backlog is without end. The sizes are N, HALF
   and one here for 500, 128, 16 and one.
   Abstracted: time (what waits gets due, and a call times out, at any step), order within
   keys, a call of which poison takes a part of its topic along.

   The rule.
     - Of each key and topic remember the last silent call since its last answer.
     - Rows of a topic of which another row in the call was answered: unanswered ones
       pay. Otherwise nobody of the topic pays and the topic's breaker opens; if nothing
       at all was answered, the lane's opens too.
     - The lane is open: one row, of the topic and then of the key whose last silent call
       is longest ago (none: first), the oldest of these. An answer closes the lane and
       its topic.
     - A topic is open: now and then one row of it, chosen the same way.
     - Of each row count the silent calls since its last answer, but not those that a
       breaker let through: these say nothing about the row. A call takes rows of one
       count only, and the more it is, the fewer: all that fit, HALF, one.
     - A row that is alone by its count and isn't answered pays if, when its call began,
       its topic was known to answer: a call of the topic that began after the topic's
       last silence, or last such payment, had been answered, and it hasn't been silent
       since. Not just answered by the time when the call ends: after a short outage others
       are, before the calls that it cut time out.

   Asserted:
     OUTAGE    a healthy row pays only for a call in whose time broker or topic was away,
               and at most once for each outage
     POISONED  with everything there for good, and a healthy row of its topic due, poison
               is abandoned within PATIENCE calls
     STARVED   a healthy row whose topic is there for good waits for at most PATIENCE
               calls, whatever the other topic does
     BACKLOG   with everything there for good and no poison, the rows that were in silent
               calls leave in as many calls as their sizes ask for, and one per open
               breaker. So with 500, 128, 16: after one outage 10,000 rows in some 80
   With two calls POISONED and STARVED are left out: a call may take for ever there.
   Switches that must fail: see README.md. */
#ifndef POISONS
#define POISONS 1
#endif
#ifndef OUTAGES
#define OUTAGES 2
#endif
#ifndef RESTARTS
#define RESTARTS 1
#endif
#ifndef MAX
#define MAX 3
#endif
#define PATIENCE (12 * MAX * (POISONS + 1))
#ifndef N
#define N 4
#endif
#ifndef HALF
#define HALF 2
#endif
#ifndef C
#define C 1
#endif
#define BIT(m) (1 << (m))
#if C == 2
#define OUT (out[0] | out[1])
#define THROUGH(set) (through[0] && (out[0] & (set)) || through[1] && (out[1] & (set)))
#define AWAY (out[0] && away[0] || out[1] && away[1])
#else
#define OUT out[0]
#define THROUGH(set) (through[0] && (out[0] & (set)))
#define AWAY (out[0] && away[0])
#endif
#if POISONS == 2 /* a third slot of topic 0, for a healthy row */
#define TOPIC(m) ((m) / 3)
#define OF(t) ((t) == 0 -> 7 : 8)
#else
#define TOPIC(m) ((m) / (N / 2))
#if N == 6
#define OF(t) ((t) == 0 -> 7 : 56)
#else
#define OF(t) ((t) == 0 -> 3 : 12)
#endif
#endif
#define POISON(m) ((m) < POISONS)
#define ALLPOISON (BIT(POISONS) - 1)
hidden byte OUTAGE = 1, POISONED = 1, STARVED = 1, BACKLOG = 1;
#define ALONE 2 /* from that count on */
#define SIZE(c) ((c) == 0 -> N : ((c) < ALONE -> HALF : 1))

#ifdef ALONEATONCE
#define LIMIT(c) ((c) == 0 -> N : 1)
#else
#define LIMIT(c) SIZE(c)
#endif
#define NONE 0
#define PEND 1
#define FAIL 2
#define ABAN 3
byte st[N], att[N];
byte rank[N+2]; /* keys, then topics: by their last silent call, 0 none */
bit open, topen[2], known[2], up = 1, tup = 1;
byte outages = OUTAGES, restarts = RESTARTS, turn;
byte count[N]; /* silent calls that no breaker let through */
byte real[N];  /* the same, by the rule, whatever a switch makes of count */
bit paid[N];
byte wait[N], calls;
/* calls: their rows; as bits: the broker was away, topic 0 was, the broker went away in the middle; let through by a
   breaker; alone; the topic was known to answer when it began, and hasn't been silent since; topics that weren't silent since */
byte out[C], away[C], fresh[C]; bit through[C], lone[C], sure[C];
bit settled; byte allowed; /* all is there for good, and what the rows of silent calls may take */
hidden byte i, j, batch, ans, due, best, from, alone, tried, convinced, since, lost;

/* nothing is known of topic t, nor to calls that are out */
inline unknown(t) { known[t] = 0; i = 0; do :: i < C -> if :: out[i] -> fresh[i] = fresh[i] & ~BIT(t); if :: out[i] & OF(t) -> sure[i] = 0 :: else fi :: else fi; i++ :: else -> break od; i = 0 }
inline fewest(set) {
  best = N; i = 0;
  do
  :: i < N ->
    if
    :: (set) & BIT(i) ->
      if
      :: best == N -> best = i
#ifndef SAMEPROBE
#ifndef NOTOPIC
      :: best != N && rank[N+TOPIC(i)] < rank[N+TOPIC(best)] -> best = i
      :: best != N && rank[N+TOPIC(i)] == rank[N+TOPIC(best)] && rank[i] < rank[best] -> best = i
#else
      :: best != N && rank[i] < rank[best] -> best = i
#endif
#endif
      :: else
      fi
    :: else
    fi; i++
  :: else -> break
  od; i = 0; batch = BIT(best); best = 0
}
/* of the rows whose topic isn't open the oldest of a count, 0 or not, and those that may go with it */
inline sized(suspects) {
  from = N; best = 0; i = 0;
  do
  :: i < N ->
    if
    :: (due & BIT(i)) && !topen[TOPIC(i)] && (count[i] > 0) == suspects ->
      if
#ifdef TOGETHER
      :: 1 -> batch = batch | BIT(i)
#else
      :: from == N -> from = i; batch = BIT(i); best = 1
      :: from != N && count[i] == count[from] && best < LIMIT(count[from]) -> batch = batch | BIT(i); best++
      :: else
#endif
      fi
    :: else
    fi; i++
  :: else -> break
  od; i = 0;
  if :: from < N && count[from] == ALONE -> alone = 1 :: else fi;
  from = 0; best = 0
}
inline choose() {
  due = 0; i = 0; alone = 0; tried = 0;
  do :: i < N -> if :: st[i] == PEND && !(OUT & BIT(i)) -> due = due | BIT(i) :: else fi; i++ :: else -> break od; i = 0;
  batch = 0;
  if
  :: open -> fewest(due); tried = 1
  :: else ->
    j = 0;
    do
    :: j < 4 && batch == 0 ->
      if
      :: turn == 0 && topen[0] && (due & OF(0)) && !THROUGH(OF(0)) -> fewest(due & OF(0)); tried = 1
      :: turn == 1 && topen[1] && (due & OF(1)) && !THROUGH(OF(1)) -> fewest(due & OF(1)); tried = 1
      :: turn == 2 -> sized(1)
      :: turn == 3 -> sized(0)
      :: else
      fi;
      turn = (turn + 1) % 4; j++
    :: else -> break
    od; j = 0
  fi
}
inline pay(m) {
  if
  :: !POISON(m) -> assert(!OUTAGE || (lost & (TOPIC(m) == 0 -> 3 : 1)) && !paid[m]); paid[m] = 1
  :: else
  fi;
  att[m]++;
  if :: att[m] >= MAX -> st[m] = ABAN; calls = 0; rank[m] = 0; count[m] = 0 :: else -> st[m] = FAIL fi
}
inline eachpays(set) { i = 0; do :: i < N -> if :: (set) & BIT(i) -> pay(i) :: else fi; i++ :: else -> break od; i = 0 }
/* what is in set comes after all others; ranks without gaps, 0 is never */
inline last(at, size, set) {
  i = 0; best = 0; do :: i < size -> if :: rank[(at)+i] > best -> best = rank[(at)+i] :: else fi; i++ :: else -> break od;
  i = 0; do :: i < size -> if :: (set) & BIT(i) -> rank[(at)+i] = best + 1 :: else fi; i++ :: else -> break od;
  j = 1;
  do
  :: j <= best ->
    i = 0; do :: i < size && rank[(at)+i] != j -> i++ :: else -> break od;
    if
    :: i == size -> i = 0; do :: i < size -> if :: rank[(at)+i] > j -> rank[(at)+i]-- :: else fi; i++ :: else -> break od; best--
    :: else -> j++
    fi
  :: else -> break
  od; i = 0; j = 0; best = 0
}
inline silent(set, t) {
  last(0, N, set); last(N, 2, BIT(t));
  i = 0;
  do
  :: i < N ->
    if
    :: (set) & BIT(i) ->
      if :: !tried && real[i] < ALONE -> real[i]++ :: else fi;
#ifdef PROBESCOUNT
      if :: count[i] < ALONE -> count[i]++ :: else fi
#else
      if :: !tried && count[i] < ALONE -> count[i]++ :: else fi
#endif
    :: else
    fi; i++
  :: else -> break
  od; i = 0;
  topen[t] = 1; unknown(t)
}
#ifdef NOBODY
#define CONVICTS(t) 0
#else
#ifdef PAYTOPIC /* others were answered, so the broker is there */
#define CONVICTS(t) (ans != 0 || alone && convinced && !open)
#else
#ifdef KNOWNLATE
#define CONVICTS(t) (alone && known[t] && !open)
#else
#define CONVICTS(t) (alone && convinced && !open)
#endif
#endif
#endif
inline result(t) {
  if
  :: ans & OF(t) ->
    i = 0;
    do
    :: i < N -> if :: (ans & OF(t)) & BIT(i) -> st[i] = NONE; att[i] = 0; rank[i] = 0; count[i] = 0; real[i] = 0 :: else fi; i++
    :: else -> break
    od; i = 0;
    eachpays(batch & OF(t) & ~ans);
    rank[N+t] = 0; topen[t] = 0; open = 0; if :: since & BIT(t) -> known[t] = 1 :: else fi
  :: !(ans & OF(t)) && (batch & OF(t)) ->
    if
#ifdef PAYALL
    :: 1 -> eachpays(batch & OF(t)); silent(batch & OF(t), t)
#else
    :: CONVICTS(t) -> unknown(t); eachpays(batch & OF(t))
    :: !CONVICTS(t) -> silent(batch & OF(t), t); if :: ans == 0 -> open = 1 :: else fi
#endif
    fi
  :: else
  fi
}
inline unpay() { i = 0; do :: i < N -> paid[i] = 0; i++ :: else -> break od; i = 0 }
/* what rows of silent calls may take from now on */
inline allow() {
  settled = 1; allowed = open + topen[0] + topen[1]; j = 0;
  do
  :: j < 4 -> /* of each topic the two counts */
    best = 0; i = 0;
    do
    :: i < N ->
      if
      :: TOPIC(i) == j / 2 && real[i] == 1 + j % 2 && st[i] == FAIL -> allowed++ /* due when it likes */
      :: TOPIC(i) == j / 2 && real[i] == 1 + j % 2 && st[i] != FAIL -> best++
      :: else
      fi; i++
    :: else -> break
    od;
    allowed = allowed + (best + SIZE(1 + j % 2) - 1) / SIZE(1 + j % 2); j++
  :: else -> break
  od; i = 0; j = 0; best = 0
}
inline spend() {
  i = 0; do :: i < N && !((batch & BIT(i)) && real[i]) -> i++ :: else -> break od;
  if :: i < N -> assert(!BACKLOG || allowed > 0); if :: allowed > 0 -> allowed-- :: else fi :: else fi; i = 0
}
inline begin(c) {
  choose();
  if
  :: batch != 0 ->
#if POISONS == 0
    if
    :: up && tup && outages == 0 && restarts == 0 && !AWAY -> if :: !settled -> allow() :: else fi; spend()
    :: else
    fi;
#endif
    out[c] = batch; through[c] = tried; lone[c] = alone; fresh[c] = 3; sure[c] = (batch & OF(0) -> known[0] : known[1]); away[c] = !up + 2 * !tup
  :: else
  fi;
  batch = 0; due = 0; alone = 0; tried = 0
}
/* with mute, poison silences all of it; with one, an outage in the middle left one answer */
inline end(c, mute, one) {
  batch = out[c]; tried = through[c]; alone = lone[c]; convinced = sure[c]; since = fresh[c]; lost = away[c];
  ans = (mute && (batch & ALLPOISON) -> 0 : batch & ~ALLPOISON); if :: lost & 2 -> ans = ans & OF(1) :: else fi;
  if
  :: (lost & 1) && one && ans -> do :: !(ans & BIT(i)) -> i++ :: else -> break od; ans = BIT(i); i = 0
  :: (lost & 1) && !(one && ans) -> ans = 0
  :: else
  fi;
#if POISONS > 0 && C == 1
  if
  :: up && outages == 0 && restarts == 0 ->
    due = 0; i = 0; do :: i < N -> if :: st[i] == PEND -> due = due | BIT(i) :: else fi; i++ :: else -> break od;
    if :: tup && (due & ALLPOISON) && (due & ~ALLPOISON & OF(0)) -> calls++; assert(!POISONED || calls <= PATIENCE) :: else fi;
    i = POISONS;
    do
    :: i < N -> if :: (due & BIT(i)) && !(ans & BIT(i)) && (tup || TOPIC(i) == 1) -> wait[i]++; assert(!STARVED || wait[i] <= PATIENCE) :: else -> wait[i] = 0 fi; i++
    :: else -> break
    od; i = 0; due = 0
  :: else
  fi;
#endif
  result(0); result(1);
  out[c] = 0; away[c] = 0; through[c] = 0; lone[c] = 0; sure[c] = 0; fresh[c] = 0;
  batch = 0; ans = 0; alone = 0; tried = 0; convinced = 0; since = 0; lost = 0
}
#define D(m) (st[m] == PEND && !(OUT & BIT(m)))
#if N == 6
#define DUE (D(0) || D(1) || D(2) || D(3) || D(4) || D(5))
#else
#define DUE (D(0) || D(1) || D(2) || D(3))
#endif
#define FREE (DUE && !(open && THROUGH(255)))
inline call(c) {
  if
  :: d_step { out[c] == 0 && FREE -> begin(c) }
  :: d_step { out[c] != 0 -> end(c, 0, 0) }
#if POISONS > 0
  :: d_step { out[c] & ALLPOISON -> end(c, 1, 0) }
#endif
  :: d_step { (out[c] != 0) && (away[c] & 4) -> end(c, 0, 1) }
  fi
}
/* an outage cuts the calls that are out */
inline broken(what) { i = 0; do :: i < C -> if :: out[i] -> away[i] = away[i] | (what == 1 && !(away[i] & 1) -> 5 : what) :: else fi; i++ :: else -> break od; i = 0 }
inline slot(m) {
  if
  :: d_step { st[m] == NONE -> st[m] = PEND }
  :: d_step { st[m] == FAIL -> st[m] = PEND }
  fi
}
inline forget(n) { i = 0; do :: i < (n) -> rank[i] = 0; count[i] = 0; real[i] = 0; i++ :: else -> break od; i = 0 }
init {
  do
  :: slot(0)
  :: slot(1)
  :: slot(2)
  :: slot(3)
#if N == 6
  :: slot(4)
  :: slot(5)
#endif
  :: call(0)
#if C == 2
  :: call(1)
#endif
  :: d_step { up && outages > 0 -> outages--; up = 0; unpay(); broken(1) }
  :: d_step { tup && outages > 0 -> outages--; tup = 0; unpay(); broken(2) }
  :: d_step { !up -> up = 1 }
  :: d_step { !tup -> tup = 1 }
  :: d_step { !tup && !(OUT & 3) && (rank[0] != 0 || rank[1] != 0) -> forget(2) }
  :: d_step { restarts > 0 -> restarts--; open = 0; topen[0] = 0; topen[1] = 0; known[0] = 0; known[1] = 0; rank[N+0] = 0; rank[N+1] = 0;
       forget(N); turn = 0; i = 0; do :: i < C -> out[i] = 0; away[i] = 0; through[i] = 0; lone[i] = 0; sure[i] = 0; fresh[i] = 0; i++ :: else -> break od; i = 0 }
  od
}
