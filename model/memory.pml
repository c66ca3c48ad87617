/* The owner's memory of blocked keys: one partition, one owner, two keys.

   A claim walks the unfinished rows of the partition, oldest first. So that it
   doesn't walk 100,000 rows behind a failed head each time, the owner remembers
   a position `after` and a set B of blocked keys (head failed and not due, or
   held). Its walk reads only rows above `after` whose key isn't in B.

   Modelled: transactions that get an xid, take their key's lock, draw a seq, and
   commit or roll back. Rows become visible in commit order, which is seq order
   within a key, but not across keys: a row may appear below rows that are
   published already. Claims in their statements (lock of the partition row and
   its change counter; the query for xmin and xmax; walk and mark), everything
   else may come between them. Several claims in flight, never two of one key.
   Settles: published, failed, abandoned (skip or hold), handed back. Failed rows
   get due; an operator retries or skips; the partition is taken over.
   Abstracted: time, pages (a walk reads to its end), crashes of transactions
   (they are rollbacks), priorities. SQLite needs no horizon: it has one writer.

   The rule. `after` advances to the last position before the first row seen that
   is of no key in B, but never above the horizon H, up to which nothing can
   appear any more:
     - the query comes before the walk, in a statement of its own or an earlier
       one of the same transaction; it reads xmin and xmax at once;
     - if a candidate (s, x) is noted and xmin >= x, then H = s, also for the walk
       that follows, and the candidate is gone;
     - if none is noted, (largest seq that EARLIER walks saw, xmax) is.
   The same holds if walk, xmin and xmax are one statement, s being of this walk
   too (ONESTATEMENT), or if xmin is read before the walk and xmax after it, s
   being of this walk too (MAXAFTER). A key that gets due leaves B and `after`
   goes back to just before its head. A change of the partition's counter, which
   every operator's verb bumps, clears `after` and B.

   In the program a transaction's xid is its lock on the outbox table, which it
   takes before it draws a seq and holds to its end: (s, x) is the largest seq and
   all who hold the lock, read in this order, and xmin >= x is that none of these
   holds it still. Unlike xmin it doesn't wait for transactions elsewhere.

   Asserted:
     ORDER   no row is taken while an earlier visible unfinished row of its key
             isn't taken with it;
     FORGET  a claim that takes nothing and changes nothing in the memory leaves
             no key whose first unfinished row is takeable: it would stay for ever.

   Must fail (see README.md for the traces): NOHORIZON XMAXEARLY XMINLATE SEQFIRST
   TAKENPAST NORESET NOBUMP COUNTERLATE PEEKBLIND INHANDRACE
   Must hold: the default, ONESTATEMENT, MAXAFTER, INHAND (`after` passes rows in
   the owner's hand, their keys being in B until they are settled).
   Sizes: T transactions, one row each; FB events that aren't plain success. */
#ifndef T
#define T 3
#endif
#ifndef FB
#define FB 2
#endif
#define K 2
#ifdef INHANDRACE
#define INHAND
#endif

/* row m has seq m+1; `after` = 0 is before all */
#define NONE 0 /* not drawn, not visible or rolled back */
#define PEND 1 /* takeable if it is its key's first unfinished row */
#define PROC 2
#define FAIL 3 /* not due */
#define HELD 4
#define DONE 5 /* published, or abandoned and passed over */
/* the properties; one that is 0 isn't asserted */
hidden byte ORDER = 1, FORGET = 1;

byte st[T], key[T];
bit due[T]; /* the time that the owner remembers for it has come */

/* transactions: 0 not begun, 1 begun, 2 seq drawn, 3 ended */
byte pc[T], tk[T], row[T], xid[T]; /* xid 0: none yet */
byte nextx = 1, nexts, lock[K];    /* lock: 1 + the transaction that holds it */
byte budget = FB;

bit changed; /* the partition's change counter isn't what the owner saw last */

/* the owner */
byte step; /* of its claim: 0 none */
byte after, B, head[K], H, big, cs, cx; /* cx 0: no candidate */
byte x0, x1;                                  /* xmin and xmax as read */
byte wafter, wB, whead[K], wbig, wtake;       /* what a walk found */
bit moved;                                    /* the claim changed the memory */
hidden byte i, j, k, stop;

#define BIT(n) (1 << (n))
/* something happened beside a claim: that it changed nothing proves nothing */
#define BESIDE if :: step != 0 -> moved = 1 :: else fi
#define UNF(m) (st[m] >= PEND && st[m] <= HELD)

/* --- transactions ------------------------------------------------------- */
inline begin(n, ky) {
  d_step { pc[n] == 0 && (n == 0 || pc[n-1] != 0) -> tk[n] = ky; pc[n] = 1;
#ifndef SEQFIRST
    xid[n] = nextx; nextx++
#endif
  }
}
inline transaction(n) {
  if
  :: begin(n, 0)
  :: begin(n, 1)
  :: d_step { pc[n] == 1 && lock[tk[n]] == 0 -> lock[tk[n]] = n+1; row[n] = nexts; nexts++; pc[n] = 2 }
#ifdef SEQFIRST
  :: d_step { pc[n] == 2 && xid[n] == 0 -> xid[n] = nextx; nextx++ }
#endif
  :: d_step { pc[n] == 2 && xid[n] != 0 -> BESIDE; st[row[n]] = PEND; key[row[n]] = tk[n]; lock[tk[n]] = 0; tk[n] = 0; row[n] = 0; pc[n] = 3 }
  :: d_step { pc[n] == 2 && budget > 0 -> budget--; lock[tk[n]] = 0; tk[n] = 0; row[n] = 0; pc[n] = 3 } /* rollback: a gap */
  fi
}
#define RUNS(n) (xid[n] != 0 && pc[n] != 3)
inline snapshot() {
  x1 = nextx; x0 = nextx; i = 0;
  do :: i < T -> if :: RUNS(i) && xid[i] < x0 -> x0 = xid[i] :: else fi; i++ :: else -> break od; i = 0
}

/* --- the memory --------------------------------------------------------- */
inline unblock(ky) {
  B = B & ~BIT(ky);
#ifndef NORESET
  if :: head[ky] < after -> after = head[ky] :: else fi; /* seq of the head - 1 */
#endif
  head[ky] = 0
}
inline promote() {
#ifdef NOHORIZON
  H = big
#else
  if :: cx != 0 && x0 >= cx -> H = cs; cs = 0; cx = 0; moved = 1 :: else fi
#endif
}
inline note() { if :: cx == 0 && big > H -> cs = big; cx = x1; moved = 1 :: else fi }

inline counter() {
  if :: changed -> changed = 0; after = 0; B = 0; head[0] = 0; head[1] = 0; moved = 1 :: else fi
}

/* walk: what of the visible rows above `after`, keys of B excluded, can be taken, and up to where all is blocked */
inline walk() {
  wafter = T; wbig = big; wB = 0; wtake = 0; stop = 0; i = after;
  do
  :: i < T ->
    if
    :: !UNF(i) || (B & BIT(key[i])) -> skip
    :: else ->
      if :: i+1 > wbig -> wbig = i+1 :: else fi;
      if
      :: (wB & BIT(key[i])) -> skip
      :: else ->
        if
        :: st[i] == PEND && !(stop & BIT(key[i])) ->
           wtake = wtake | BIT(i);
#ifdef INHAND
           /* its key goes to B below */
#else
#ifndef TAKENPAST
           if :: wafter > i -> wafter = i :: else fi
#endif
#endif
        :: st[i] == PROC ->
           stop = stop | BIT(key[i]);
#ifndef TAKENPAST
           if :: wafter > i -> wafter = i :: else fi
#endif
        :: (st[i] == FAIL || st[i] == HELD) && !(stop & BIT(key[i])) ->
           /* behind rows that are being taken it isn't the head: left for a later walk */
           j = after; k = 0;
           do :: j < i -> if :: (wtake & BIT(j)) && key[j] == key[i] -> k = 1 :: else fi; j++ :: else -> break od; j = 0;
           if
           :: k -> stop = stop | BIT(key[i]); if :: wafter > i -> wafter = i :: else fi
           :: else -> wB = wB | BIT(key[i]); whead[key[i]] = i
           fi; k = 0
        :: else -> skip /* behind a row in hand, at which `after` stops */
        fi
      fi
    fi; i++
  :: else -> break
  od; i = 0; stop = 0
}
/* apply: mark the rows and remember */
inline apply() {
  i = 0;
  do
  :: i < T ->
    if
    :: (wtake & BIT(i)) && st[i] == PEND ->
      j = 0;
      do :: j < i -> assert(!ORDER || !(UNF(j) && key[j] == key[i]) || (wtake & BIT(j))); j++
         :: else -> break od; j = 0;
#ifdef INHAND
      if :: (wB & BIT(key[i])) -> skip :: else -> wB = wB | BIT(key[i]); whead[key[i]] = i fi;
#endif
      st[i] = PROC; due[i] = 0; moved = 1
    :: else fi; i++
  :: else -> break
  od; i = 0;
  if :: wafter > H -> wafter = H :: else fi;
  if :: wafter < after -> wafter = after :: else fi; /* a walk never goes back by itself */
  if :: (wB & BIT(0)) -> head[0] = whead[0]; moved = 1 :: else fi;
  if :: (wB & BIT(1)) -> head[1] = whead[1]; moved = 1 :: else fi;
  if :: wafter != after || wbig != big -> moved = 1 :: else fi;
  B = B | wB; after = wafter; big = wbig;
  wafter = 0; wB = 0; wbig = 0; wtake = 0; whead[0] = 0; whead[1] = 0
}
/* stuck: the claim found nothing and learned nothing; the next one would do the same */
inline finish() {
  if
  :: !moved ->
    i = 0; stop = 0;
    do
    :: i < T ->
      if
      :: UNF(i) && !(stop & BIT(key[i])) ->
        assert(!FORGET || st[i] != PEND || (B & BIT(key[i])) && due[head[key[i]]]);
        stop = stop | BIT(key[i])
      :: else fi; i++
    :: else -> break
    od; i = 0; stop = 0
  :: else fi;
  moved = 0; step = 0; x0 = 0; x1 = 0
}
/* the time of a remembered head has come */
inline frees() {
  if :: (B & 1) && due[head[0]] -> unblock(0); moved = 1 :: else fi;
  if :: (B & 2) && due[head[1]] -> unblock(1); moved = 1 :: else fi
}

inline owner() {
  if
#ifdef COUNTERLATE
  :: d_step { step == 0 -> frees(); snapshot(); promote(); note(); walk(); step = 1 }
  :: d_step { step == 1 -> counter(); apply(); finish() }
#else
#ifdef PEEKBLIND
  :: d_step { step == 0 -> frees(); walk();
       if :: wtake != 0 || cx != 0 || wbig != big || wB != 0 || moved -> moved = 0; counter(); step = 1
          :: else -> finish() /* nothing to see: no claim */
       fi; wafter = 0; wB = 0; wbig = 0; wtake = 0; whead[0] = 0; whead[1] = 0 }
#else
  :: d_step { step == 0 -> step = 1; counter(); frees() } /* the partition row is locked until the end */
#endif
#ifdef ONESTATEMENT
  :: d_step { step == 1 -> snapshot(); promote(); walk(); apply(); note(); finish() }
#else
#ifdef MAXAFTER
  :: d_step { step == 1 -> snapshot(); promote(); x0 = 0; x1 = 0; step = 2 }
  :: d_step { step == 2 -> walk(); apply(); step = 3 }
  :: d_step { step == 3 -> snapshot(); note(); finish() }
#else
#ifdef XMAXEARLY
  :: d_step { step == 1 -> snapshot(); promote(); step = 2 }
  :: d_step { step == 2 -> walk(); apply(); note(); finish() }
#else
#ifdef XMINLATE
  :: d_step { step == 1 -> walk(); step = 2 }
  :: d_step { step == 2 -> snapshot(); promote(); note(); apply(); finish() }
#else
#ifdef INHANDRACE
  :: d_step { step == 1 -> snapshot(); promote(); note(); walk(); step = 2 }
  :: d_step { step == 2 -> apply(); finish() }
#else
  :: d_step { step == 1 -> snapshot(); promote(); note(); x0 = 0; x1 = 0; step = 2 }
  :: d_step { step == 2 -> walk(); apply(); finish() }
#endif
#endif
#endif
#endif
#endif
#endif
  fi
}

/* --- what becomes of rows ------------------------------------------------ */
#ifdef INHANDRACE
#define MEMORYFREE 1
#else
#define MEMORYFREE (step == 0)
#endif
#ifdef INHAND
#define SETTLES(m) (st[m] == PROC && MEMORYFREE)
#define SETTLED(m) if :: (B & BIT(key[m])) -> unblock(key[m]) :: else fi
#else
#define SETTLES(m) (st[m] == PROC)
#define SETTLED(m) skip
#endif
/* the first of a key's rows in hand takes the outcome; those behind it go back unless it was published */
inline back(m) {
  i = m+1; do :: i < T -> if :: st[i] == PROC && key[i] == key[m] -> st[i] = PEND :: else fi; i++ :: else -> break od; i = 0
}
#define FIRST(m) ((m) == 0 || !(st[0] == PROC && key[0] == key[m]) && ((m) == 1 || !(st[1] == PROC && key[1] == key[m]) && ((m) == 2 || !(st[2] == PROC && key[2] == key[m]))))
#ifdef NOBUMP
#define bump() skip
#else
#define bump() changed = 1
#endif
inline fate(m) {
  if
  :: d_step { SETTLES(m) && FIRST(m) -> BESIDE; st[m] = DONE; back(m); SETTLED(m) } /* published */
  :: d_step { SETTLES(m) && FIRST(m) && budget > 0 -> BESIDE; budget--; st[m] = FAIL; back(m); SETTLED(m) }
  :: d_step { SETTLES(m) && FIRST(m) && budget > 0 -> BESIDE; budget--; st[m] = HELD; back(m); SETTLED(m) }
  :: d_step { SETTLES(m) && FIRST(m) && budget > 0 -> BESIDE; budget--; st[m] = PEND; back(m); SETTLED(m) } /* handed back */
  :: d_step { st[m] == FAIL -> BESIDE; st[m] = PEND; due[m] = 1 }
  /* an operator, under the partition's lock */
  :: d_step { step == 0 && (st[m] == FAIL || st[m] == HELD) -> st[m] = PEND; bump() } /* retry */
  :: d_step { step == 0 && (st[m] == FAIL || st[m] == HELD) -> st[m] = DONE; bump() } /* skip */
  :: d_step { step == 0 && st[m] == DONE && budget > 0 -> budget--; st[m] = PEND; bump() } /* retry of an abandoned row */
  fi
}

init {
  do
  :: transaction(0)
  :: transaction(1)
  :: transaction(2)
#if T > 3
  :: transaction(3)
#endif
  :: owner()
  :: fate(0)
  :: fate(1)
  :: fate(2)
#if T > 3
  :: fate(3)
#endif
  /* takeover, or a new fence of one's own: the memory starts empty */
  :: d_step { budget > 0 && step == 0 -> budget--;
       i = 0; do :: i < T -> if :: st[i] == PROC -> st[i] = PEND :: else fi; i++ :: else -> break od; i = 0;
       after = 0; B = 0; head[0] = 0; head[1] = 0; H = 0; big = 0; cs = 0; cx = 0; changed = 0 }
  od
}
