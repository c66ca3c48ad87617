/* Who pays when nothing is answered: the lane's breaker and its suspects.

   A call of which no row is answered says nothing about its rows: the broker may be
   away, or one row may be one that it never answers. Nobody pays; the breaker opens.

   Modelled: one lane, calls one after the other. Slots 0 to 3 hold rows of different
   keys, the lower the older; the rows in the first POISONS slots are never answered. A
   published row's slot may get a new row at any time. The broker goes away OUTAGES
   times, between calls or in the middle of one, and comes back at any time.
   Abstracted: time (what waits gets due at any step), order within keys, several calls
   at once, all failures with an answer.

   The rule.
     - Some of a call is answered: unanswered heads pay.
     - Nothing is: nobody pays, the breaker opens, the rows of this call are the suspects
       (whoever was suspected before is not any more). While it is open, the probe is the
       oldest row that isn't suspected, or else the oldest.
     - When it has closed, suspects go first, one per call. One that isn't answered alone
       pays, and the breaker opens again: each answer convicts one row at most.

   Asserted:
     OUTAGE    a healthy row pays only while the broker is away, and at most once in each
               outage; so with OUTAGES < MAX none is abandoned
     POISONED  with the broker there for good, and poison and healthy rows due, poison is
               abandoned within PATIENCE calls
     STARVED   with the broker there for good, a healthy row waits for at most PATIENCE
               calls
   Poison that is alone in its lane is tried for ever: nobody can know.
   Switches that must fail: see README.md. */
#ifndef POISONS
#define POISONS 1
#endif
#ifndef OUTAGES
#define OUTAGES 2
#endif
#ifndef MAX
#define MAX 3
#endif
#define PATIENCE (6 * MAX * POISONS)
#define N 4
#define BIT(m) (1 << (m))
#define POISON(m) ((m) < POISONS)
#define ALLPOISON (BIT(POISONS) - 1)

/* the properties; one that is 0 isn't asserted */
hidden byte OUTAGE = 1, POISONED = 1, STARVED = 1;

#define NONE 0 /* published, or not there yet */
#define PEND 1
#define FAIL 2 /* not due */
#define ABAN 3
byte st[N], att[N];
bit open, known;    /* known: answered since the last call that wasn't */
byte suspects;
#ifdef CURSOR
byte cursor;
#endif
bit up = 1;
byte outages = OUTAGES;
bit paid[N];        /* in this outage */
byte wait[N], calls;
hidden byte i, batch, ans, due, from;

inline lowest(set) { i = 0; batch = 0; do :: i < N && batch == 0 -> batch = (set) & BIT(i); i++ :: else -> break od; i = 0 }
#ifdef UNION
#define STAYS 1
#else
#define STAYS 0
#endif
inline choose() {
  i = 0; due = 0;
  do :: i < N -> if :: st[i] == PEND -> due = due | BIT(i) :: else fi; i++ :: else -> break od;
  from = due;
  if
  :: open ->
#ifdef CURSOR
    if :: due & ~((BIT(cursor) * 2) - 1) -> from = due & ~((BIT(cursor) * 2) - 1) :: else fi;
    lowest(from); cursor = 0; do :: batch != BIT(cursor) -> cursor++ :: else -> break od
#else
#ifndef SAMEPROBE
    if :: due & ~suspects -> from = due & ~suspects :: else if :: !STAYS -> suspects = 0 :: else fi fi;
#endif
    lowest(from)
#endif
  :: !open && (due & suspects) ->
#ifdef TOGETHER
    batch = due & suspects
#else
    lowest(due & suspects)
#endif
  :: else -> /* up to three */
    batch = due; if :: batch == 15 -> batch = 7 :: else fi
  fi; from = 0
}
inline pay(m) {
  if
  :: !POISON(m) -> assert(!OUTAGE || !up && !paid[m]); paid[m] = 1
  :: else
  fi;
  att[m]++;
  if :: att[m] >= MAX -> st[m] = ABAN; calls = 0 :: else -> st[m] = FAIL fi
}
/* one call; `cut`: the broker goes away when it has answered one row */
inline call(cut) {
  choose();
  ans = (up -> batch & ~ALLPOISON : 0);
  if
  :: cut -> up = 0; outages--; i = 0; do :: i < N -> paid[i] = 0; i++ :: else -> break od;
     from = batch; lowest(ans); ans = batch; batch = from; from = 0
  :: else
  fi;
  /* with the broker there for good, this has to lead somewhere */
  if
  :: up && outages == 0 ->
    if :: (due & ALLPOISON) && (due & ~ALLPOISON) -> calls++; assert(!POISONED || calls <= PATIENCE) :: else fi;
    i = POISONS;
    do
    :: i < N -> if :: (due & BIT(i)) && !(ans & BIT(i)) -> wait[i]++; assert(!STARVED || wait[i] <= PATIENCE) :: else -> wait[i] = 0 fi; i++
    :: else -> break
    od; i = 0
  :: else
  fi;
  if
  :: ans != 0 ->
    i = 0;
    do
    :: i < N ->
      if
      :: ans & BIT(i) -> st[i] = NONE; att[i] = 0
      :: (batch & ~ans) & BIT(i) -> pay(i)
      :: else
      fi; i++
    :: else -> break
    od; i = 0;
    suspects = suspects & ~batch; open = 0; known = 1
  :: else ->
    i = 0; do :: !(batch & BIT(i)) -> i++ :: else -> break od;
    if
#ifdef PAYALL
    :: 1 -> i = 0; do :: i < N -> if :: batch & BIT(i) -> pay(i) :: else fi; i++ :: else -> break od
#else
#ifndef NOBODY
    :: !open && known && batch == BIT(i) && (suspects & batch) -> pay(i); suspects = suspects & ~batch
#endif
#endif
    :: else ->
#if defined(LASTCALL) || defined(CURSOR)
      suspects = batch
#else
      suspects = suspects | batch
#endif
    fi; i = 0;
    open = 1; known = 0
  fi;
  batch = 0; ans = 0; due = 0
}
#define DUE (st[0] == PEND || st[1] == PEND || st[2] == PEND || st[3] == PEND)
inline slot(m) {
  if
  :: d_step { st[m] == NONE -> st[m] = PEND }
  :: d_step { st[m] == FAIL -> st[m] = PEND }
  fi
}
init {
  do
  :: slot(0)
  :: slot(1)
  :: slot(2)
  :: slot(3)
  :: d_step { DUE -> call(0) }
  :: d_step { DUE && up && outages > 0 -> call(1) }
  :: d_step { up && outages > 0 -> outages--; up = 0; i = 0; do :: i < N -> paid[i] = 0; i++ :: else -> break od; i = 0 }
  :: d_step { !up -> up = 1 }
  od
}
