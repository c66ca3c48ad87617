/* A reader of the history passes over nothing that commits late.

   Modelled: two tables, history and events, whose rows draw their positions from one
   sequence; transactions with one or two rows, in either table or in both, each of
   which locks its table before it draws and has that lock until it ends; commits and
   rollbacks; a reader, which notes the highest visible position, then who has a lock on
   either table, waits until these have ended, and reads up to that position with a
   snapshot of then.
   Abstracted: locks on other tables, for which nobody waits; pages. That one
   aggregate's positions are in the order of its commits is in commit.pml.

   Asserted:
     LOST   when all have ended and the reader has come to the end, it has read every
            committed row

   Switches that must fail: see README.md. */
#ifndef T
#define T 3
#endif
#define BIT(n) (1 << (n))
/* the properties; one that is 0 isn't asserted */
hidden byte LOST = 1;

byte next = 1;
byte pc[T];                    /* 0: not begun, 1: before its first row, 2: has one, 3: has two, 4: ended */
byte locks[T];                 /* tables, as bits */
byte owner[2*T+1];             /* by position: 1 + transaction */
bit read[2*T+1], committed[T];
byte cursor, high, waits, snap, step;
hidden byte i;

inline row(n) { owner[next] = n + 1; next++ }
inline transaction(n) {
  if
#ifdef DRAWFIRST /* the first position is drawn before the table is locked */
  :: d_step { pc[n] == 0 && (n == 0 || pc[n-1] != 0) -> row(n); pc[n] = 1 }
  :: d_step { pc[n] == 1 -> locks[n] = 1; pc[n] = 2 }
#else
  :: d_step { pc[n] == 0 && (n == 0 || pc[n-1] != 0) -> locks[n] = 1; pc[n] = 1 }
  :: d_step { pc[n] == 0 && (n == 0 || pc[n-1] != 0) -> locks[n] = 2; pc[n] = 1 }
  :: d_step { pc[n] == 1 -> row(n); pc[n] = 2 }
#endif
  :: d_step { pc[n] == 2 -> locks[n] = locks[n] | 1; row(n); pc[n] = 3 }
  :: d_step { pc[n] == 2 -> locks[n] = locks[n] | 2; row(n); pc[n] = 3 }
  :: d_step { pc[n] == 2 || pc[n] == 3 -> committed[n] = 1; locks[n] = 0; pc[n] = 4 }
  :: d_step { pc[n] == 2 || pc[n] == 3 -> locks[n] = 0; pc[n] = 4 } /* rollback */
  fi
}

#ifdef ONETABLE
#define WRITES(n) (locks[n] & 1)
#else
#define WRITES(n) (locks[n] != 0)
#endif
inline highest() {
  i = 1; high = cursor;
  do :: i < next -> if :: committed[owner[i] - 1] -> high = i :: else fi; i++ :: else -> break od; i = 0
}
inline writers() {
  i = 0; waits = 0;
  do :: i < T -> if :: WRITES(i) -> waits = waits | BIT(i) :: else fi; i++ :: else -> break od; i = 0
}
inline look() {
  i = 0; snap = 0;
  do :: i < T -> if :: committed[i] -> snap = snap | BIT(i) :: else fi; i++ :: else -> break od; i = 0
}
inline page() {
  i = cursor + 1;
  do :: i <= high -> if :: snap & BIT(owner[i] - 1) -> read[i] = 1 :: else fi; i++ :: else -> break od;
  i = 0; cursor = high; high = 0; waits = 0; snap = 0; step = 0
}
#define ENDED(n) (n >= T || !(waits & BIT(n)) || pc[n] == 4)
inline reader() {
  if
#ifdef WRITERSFIRST
  :: d_step { step == 0 -> writers(); step = 1 }
  :: d_step { step == 1 -> highest(); step = 2 }
#else
  :: d_step { step == 0 -> highest();
#ifdef OLDSNAPSHOT
       look();
#endif
       step = 1 }
  :: d_step { step == 1 ->
#ifndef PLAIN
       writers();
#endif
       step = 2 }
#endif
  :: d_step { step == 2 && ENDED(0) && ENDED(1) && ENDED(2) ->
#ifndef OLDSNAPSHOT
       look();
#endif
       page() }
  fi
}
#define ALLENDED (pc[0] == 4 && pc[1] == 4 && (T < 3 || pc[T-1] == 4))
inline end() {
  i = 1;
  do
  :: i < next -> assert(!LOST || read[i] || !committed[owner[i] - 1]); i++
  :: else -> break
  od; i = 0
}

init {
  do
  :: transaction(0)
  :: transaction(1)
#if T > 2
  :: transaction(2)
#endif
  :: reader()
  /* a last look, at what no one changes any more, comes to the end */
  :: d_step { ALLENDED && step == 0 -> highest(); look(); page(); end() } -> break
  od
}
