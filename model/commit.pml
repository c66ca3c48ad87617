/* Is seq order commit order?

   Modelled: two transactions. Each raises events of aggregate 0, aggregate 1, or both:
   it locks the aggregates' rows (their versioned UPDATE), one after the other, then it
   draws a seq for each event, then it commits. Readers see a transaction's rows when it
   has committed.
   Abstracted: everything else of a transaction; rollbacks (they only leave gaps).

   Asserted:
     ORDER     of two transactions with events of one aggregate, who committed first has
               the lower seq; with SHARED the aggregates have one partition key, and the
               same holds for it
     DEADLOCK  no two transactions wait for each other

   Variants that must hold: SHARED with KEYLOCK (an advisory lock on the key, after the
   aggregates and before the first seq).
   Switches that must fail: see README.md. */
#define BIT(a) (1 << (a))
/* the properties; one that is 0 isn't asserted */
hidden byte ORDER = 1, DEADLOCK = 1;

byte raises[2];             /* a transaction's aggregates, as bits */
byte locked[2];             /* by aggregate: 1 + transaction */
byte keylock;               /* 1 + transaction */
byte pc[2], held[2];        /* steps; locks that it has, as bits */
byte seq[4], drawn[2];      /* by 2 * transaction + aggregate; drawn, as bits */
byte nexts = 1, cached[2];
byte commits, place[2];     /* order of commits, 1 on */
#define SEQ(n, a) seq[2 * (n) + (a)]

#ifdef NOROW /* an event is raised and its aggregate's row is not written */
#define LOCKS 0
#else
#define LOCKS raises[n]
#endif
#ifdef OUTBOXFIRST /* seqs first, locks then */
#define MAYLOCK(n) (pc[n] == 2)
#define MAYDRAW(n) (pc[n] == 1)
#else
#define MAYLOCK(n) (pc[n] == 1)
#define MAYDRAW(n) (pc[n] == 2)
#endif
#ifdef KEYLOCK
#define KEYHELD(n) (keylock == n+1)
#else
#define KEYHELD(n) 1
#endif
/* aggregates in the order of their ids; UNSORTED: as they come */
#ifdef UNSORTED
#define TURN(n, a) 1
#else
#define TURN(n, a) ((a) == 0 || !(LOCKS & 1) || (held[n] & 1))
#endif
#ifdef CACHED /* each connection draws from a block of its own */
#define DRAW(n) (4 * (n) + cached[n] + 1)
#else
#define DRAW(n) nexts
#endif

inline lock(n, a) { d_step { MAYLOCK(n) && (LOCKS & BIT(a)) && !(held[n] & BIT(a)) && TURN(n, a) && locked[a] == 0 -> locked[a] = n+1; held[n] = held[n] | BIT(a) } }
/* events in the order of their aggregates */
inline draw(n, a) {
  d_step { MAYDRAW(n) && (raises[n] & BIT(a)) && !(drawn[n] & BIT(a)) && (a == 0 || !(raises[n] & 1) || (drawn[n] & 1)) && KEYHELD(n) ->
    SEQ(n, a) = DRAW(n); nexts++; cached[n]++; drawn[n] = drawn[n] | BIT(a) }
}
#define AGREE(a, b) (SEQ(0, a) == 0 || SEQ(1, b) == 0 || (place[0] < place[1]) == (SEQ(0, a) < SEQ(1, b)))

inline transaction(n) {
  if
  :: d_step { pc[n] == 0 -> raises[n] = 1; pc[n] = 1 }
  :: d_step { pc[n] == 0 -> raises[n] = 2; pc[n] = 1 }
  :: d_step { pc[n] == 0 -> raises[n] = 3; pc[n] = 1 }
  :: lock(n, 0)
  :: lock(n, 1)
  :: d_step { MAYLOCK(n) && held[n] == LOCKS -> pc[n]++ }
#ifdef KEYLOCK
  :: d_step { MAYDRAW(n) && keylock == 0 -> keylock = n+1 }
#endif
  :: draw(n, 0)
  :: draw(n, 1)
  :: d_step { MAYDRAW(n) && drawn[n] == raises[n] -> pc[n]++ }
  :: d_step { pc[n] == 3 -> pc[n] = 4; commits++; place[n] = commits;
       if :: locked[0] == n+1 -> locked[0] = 0 :: else fi;
       if :: locked[1] == n+1 -> locked[1] = 0 :: else fi;
       if :: keylock == n+1 -> keylock = 0 :: else fi;
       if
       :: pc[0] == 4 && pc[1] == 4 ->
#ifdef SHARED
         assert(!ORDER || AGREE(0, 0) && AGREE(0, 1) && AGREE(1, 0) && AGREE(1, 1))
#else
         assert(!ORDER || AGREE(0, 0) && AGREE(1, 1))
#endif
       :: else
       fi }
  fi
}
init {
  do
  :: transaction(0)
  :: transaction(1)
  :: pc[0] == 4 && pc[1] == 4 -> break
  :: else -> assert(!DEADLOCK || false)
  od
}
