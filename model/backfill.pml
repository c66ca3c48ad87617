/* The back-fill of an external broker that is added later: one context, one target.

   The target is joining from the first step on. Units of work raise events, one
   each; a row for the context's own broker is written always, a row for the target
   only by a unit that knows it to be live. Commands copy the events that have no
   row for the target, in seq order, behind a cursor, and the last transaction of
   one of them makes the target live.

   Modelled: units that read the state, take the outbox's lock shared (every insert
   takes it, and keeps it to the end), read the state again, take their key's lock,
   draw a seq, and commit or roll back; so a lower seq may appear after a higher
   one. Commands that find the horizon, copy one row per transaction, and flip under
   the exclusive lock; each is killed and started again at any step. Rows for the
   own broker are published and removed, and so are those of the target.
   Abstracted: how the horizon is found (track.pml has it), batches, time, the
   queue at a lock. SQLite's one writer is the exclusive lock in every transaction.

   HISTORY: events are copied from the history. Its positions stand for seqs, nothing is
   removed, and a unit may draw one before it waits for the outbox's lock.

   Asserted:
     LOST    when the target is live and all units have ended, every committed event
             was written for the target
     TWICE   no event is written for the target twice
     ORDER   the target's rows of a key are in the order of the key's events

   Must hold: the default. Must fail: see README.md. */
#ifndef T
#define T 3
#endif
#ifndef C
#define C 2
#endif
#ifndef FB
#define FB 2
#endif
#define BIT(n) (1 << (n))
/* the properties; one that is 0 isn't asserted */
hidden byte LOST = 1, TWICE = 1, ORDER = 1;

/* internal rows, by seq: 0 not visible, 1 visible, 2 published, 3 removed */
byte row[T], rkey[T], nexts;
byte drawn;      /* by unit, as bits: it has drawn and not ended */
byte seq[T];     /* of a unit */
byte written;    /* events, by seq, that have or had a row for the target */
byte gaps;       /* seqs of units that were rolled back */
byte present;    /* of these, those whose row is still there */
bit live;
byte cursor;     /* every event below it was dealt with */
byte exclusive;  /* 1 + the command that has the outbox's lock */
byte shared;     /* units that have it, as bits */
byte cursorlock; /* 1 + command */
byte keylock[2]; /* 1 + unit */
byte pc[T], key[T], knows[T]; /* what a unit takes for true: the target is live */
byte step[C], horizon[C], at[C], rest[C];
byte budget = FB;
hidden byte i, j, ok;

/* event s gets a row for the target */
inline write(s) {
  assert(!TWICE || !(written & BIT(s)));
  j = s + 1;
  do :: j < T -> assert(!ORDER || !((written & BIT(j)) && rkey[j] == rkey[s])); j++ :: else -> break od; j = 0;
  written = written | BIT(s); present = present | BIT(s)
}

/* --- units --------------------------------------------------------------- */
#define WRITES(n) (knows[n] || LIVEROWS)
#ifndef LIVEROWS
#define LIVEROWS 0
#endif
#ifdef OLDLIST /* a process that has never heard of the target */
#define READ 0
#else
#define READ live
#endif
inline unit(n) {
  if
  :: d_step { pc[n] == 0 && (n == 0 || pc[n-1] != 0) -> key[n] = 0; knows[n] = READ; pc[n] = 1 }
  :: d_step { pc[n] == 0 && (n == 0 || pc[n-1] != 0) -> key[n] = 1; knows[n] = READ; pc[n] = 1 }
#ifdef HISTORY
  :: d_step { pc[n] == 1 && keylock[key[n]] == 0 -> draw(n); pc[n] = 3 }
  :: d_step { pc[n] == 3 && exclusive == 0 -> shared = shared | BIT(n); pc[n] = 2 }
#define REREAD 4
#else
  :: d_step { pc[n] == 1 && exclusive == 0 -> shared = shared | BIT(n); pc[n] = 2 }
  :: d_step { pc[n] == 3 && keylock[key[n]] == 0 -> draw(n); pc[n] = 4 }
#define REREAD 3
#endif
#ifdef NOREREAD
  :: d_step { pc[n] == 2 -> pc[n] = REREAD }
#else
  :: d_step { pc[n] == 2 -> knows[n] = READ; pc[n] = REREAD }
#endif
  :: d_step { pc[n] == 4 -> row[seq[n]] = 1; if :: WRITES(n) -> write(seq[n]) :: else fi; ended(n) }
  :: d_step { pc[n] == 4 && budget > 0 -> budget--; row[seq[n]] = 3; gaps = gaps | BIT(seq[n]); ended(n) } /* rollback */
  fi
}
inline draw(n) {
  keylock[key[n]] = n+1; seq[n] = nexts; rkey[nexts] = key[n]; nexts++; drawn = drawn | BIT(n)
}
inline ended(n) {
  keylock[key[n]] = 0; shared = shared & ~BIT(n); drawn = drawn & ~BIT(n); key[n] = 0; knows[n] = 0; pc[n] = 5
}

/* --- commands ------------------------------------------------------------ */
/* all seqs below it were drawn by transactions that have ended */
inline look(c) {
#ifdef HIGHEST
  i = 0; horizon[c] = 0;
  do :: i < T -> if :: row[i] != 0 -> horizon[c] = i+1 :: else fi; i++ :: else -> break od
#else
  horizon[c] = nexts; i = 0;
  do :: i < T -> if :: (drawn & BIT(i)) && seq[i] < horizon[c] -> horizon[c] = seq[i] :: else fi; i++ :: else -> break od
#endif
  ; i = 0
}
/* which events a command copies: of those that are visible and not removed, */
#ifdef MISSING
#define WANTED(s, c) ((row[s] == 1 || row[s] == 2) && !(present & BIT(s)))
#else
#define WANTED(s, c) ((row[s] == 1 || row[s] == 2) && (s) >= at[c])
#endif
/* i is the first that is wanted below a bound, or the bound */
inline first(c, bound) {
  i = 0;
  do :: i < bound && !(WANTED(i, c)) -> i++ :: else -> break od
}
inline forget(c) {
  step[c] = 0; horizon[c] = 0; at[c] = 0; rest[c] = 0;
  if :: cursorlock == c+1 -> cursorlock = 0 :: else fi;
  if :: exclusive == c+1 -> exclusive = 0 :: else fi
}
inline command(c) {
  if
  :: d_step { step[c] == 0 && !live -> look(c); step[c] = 1 }
#ifdef NOCURSORLOCK
  :: d_step { step[c] == 1 && !live -> at[c] = cursor; step[c] = 2 }
#else
  :: d_step { step[c] == 1 && !live && cursorlock == 0 -> cursorlock = c+1; at[c] = cursor; step[c] = 2 }
#endif
  /* a batch of one row, or the whole way to the horizon if there is none; then it looks again */
  :: d_step { step[c] == 2 -> first(c, horizon[c]);
       if
       :: i < horizon[c] -> write(i);
#ifdef SPLIT
          at[c] = i+1; i = 0; step[c] = 3
#else
          cursor = i+1; i = 0; forget(c)
#endif
       :: else -> if :: horizon[c] > cursor -> cursor = horizon[c] :: else fi; i = 0; forget(c)
       fi }
#ifdef SPLIT
  :: d_step { step[c] == 3 -> cursor = at[c]; forget(c) }
#endif
  /* the last transaction */
#ifdef RESTFIRST
  :: d_step { step[c] == 1 && !live && cursorlock == 0 -> rest[c] = 0; i = 0;
       do :: i < T -> if :: row[i] == 1 || row[i] == 2 -> rest[c] = rest[c] | BIT(i) :: else fi; i++ :: else -> break od; i = 0;
       step[c] = 4 }
  :: d_step { step[c] == 4 && !live && exclusive == 0 && shared == 0 && cursorlock == 0 -> exclusive = c+1; cursorlock = c+1; at[c] = cursor; step[c] = 5 }
#else
#ifdef NOLOCK
  :: d_step { step[c] == 1 && !live && cursorlock == 0 -> rest[c] = 255; cursorlock = c+1; at[c] = cursor; step[c] = 5 }
#else
  :: d_step { step[c] == 1 && !live && exclusive == 0 && shared == 0 && cursorlock == 0 -> rest[c] = 255; exclusive = c+1; cursorlock = c+1; at[c] = cursor; step[c] = 5 }
#endif
#endif
  :: d_step { step[c] == 5 -> i = 0;
       do :: i < T -> if :: WANTED(i, c) && (rest[c] & BIT(i)) -> write(i) :: else fi; i++ :: else -> break od; i = 0;
       live = 1; forget(c) }
  /* the process is killed, and another one begins: what it had not committed is gone */
  :: d_step { step[c] != 0 && budget > 0 -> budget--; forget(c) }
  fi
}

/* --- what becomes of rows ------------------------------------------------- */
#ifdef HISTORY
#define REMOVABLE(m) 0
#elif defined(NOGUARD)
#define REMOVABLE(m) 1
#else
#define REMOVABLE(m) (live || (m) < cursor)
#endif
inline fate(m) {
  if
  :: d_step { row[m] == 1 -> row[m] = 2 }
  :: d_step { row[m] == 2 && REMOVABLE(m) -> row[m] = 3 }
#ifdef MISSING /* else nobody looks */
  :: d_step { present & BIT(m) -> present = present & ~BIT(m) } /* published and removed */
#endif
  fi
}

init {
  do
  :: unit(0)
  :: unit(1)
  :: unit(2)
#if T > 3
  :: unit(3)
#endif
  :: command(0)
#if C > 1
  :: command(1)
#endif
  :: fate(0)
  :: fate(1)
  :: fate(2)
#if T > 3
  :: fate(3)
#endif
  :: d_step { live && nexts == T && drawn == 0 -> assert(!LOST || (written | gaps) == BIT(T) - 1); ok = 1 } -> break
  od
}
