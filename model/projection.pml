/* A projection: builds that are fed by owners with a lease and a fence, and the switch of
   the view from one to a newer one.

   Modelled: events that commit at any time, in one order; builds, each with tables, a
   position row with its lock, a fence, and two programs that may feed it: they take the
   lease, read a page behind their position, lock the position's row by its fence, and
   commit effect and position. A lease may end at any time, also while its owner goes on.
   A commit may go unanswered, and the database may do it later, or never, while its owner
   reads the position and goes on.
   A switch to each build but the first: it locks the rows of all builds, reads which is
   live, freezes that one's position, waits until the new one is not behind, and replaces
   the view. An operator goes back to the first build, by the same rule. A cleaner removes
   builds that were live before, an operator one that wasn't live yet; its number is given
   to another build. Programs and switches may end before their commit.
   Abstracted: shards, of which the highest and the lowest position count as the one here;
   statuses (building, ready), which only say when a switch is tried.

   Asserted:
     ONCE   each build's tables have the effect of each event up to its position, once
     BACK   the view never shows less than it has shown
     GONE   what the view shows is there
     OWN    only a build's own programs write into its tables
     DONE   when nothing more can happen, the live build has all events, nothing is locked,
            and without an operator the newest one is live

   Switches that must fail: see README.md. */
#ifndef FB
#define FB 1
#endif
#ifndef BUILDS
#define BUILDS 2
#endif
#ifndef OPS
#define OPS 0
#endif
#define EVENTS 2
#define NOBODY 255
#define SWITCH(b) (100 + (b))
/* the properties; one that is 0 isn't asserted */
hidden byte ONCE = 1, BACK = 1, GONE = 1, OWN = 1, DONE = 1;

byte faults = FB, ops = OPS, head;
byte live;                                 /* whose tables the view shows */
bit there[BUILDS], was[BUILDS];            /* it has tables; it was live before */
byte pos[BUILDS], eff[BUILDS], fence[BUILDS], lk[BUILDS], owner[BUILDS];
byte rows = NOBODY;                        /* who has locked the rows of the builds */
/* programs, two for each build */
byte rpc[2*BUILDS], rfence[2*BUILDS], rpos[2*BUILDS], rto[2*BUILDS];
bit anew[BUILDS], ranew[2*BUILDS];         /* a build that has a removed one's number; programs that took its lease */
byte late[BUILDS], lfrom[BUILDS], lto[BUILDS]; /* an unanswered commit that may still be done: its fence and what it moves */
bit lanew[BUILDS];
/* switches by the build that they are to; that to build 0 is the operator's */
byte spc[BUILDS], sold[BUILDS];
byte dpc[BUILDS];                          /* the cleaner, by build */

/* --- programs that feed a build --------------------------------------------- */
#define B(r) ((r) / 2)
#define OTHER(r) ((r) % 2 == 0 -> (r) + 1 : (r) - 1)
inline let_go(r) {
  if :: lk[B(r)] == r -> lk[B(r)] = NOBODY :: else fi;
  rpc[r] = 0; rfence[r] = 0; rpos[r] = 0; rto[r] = 0; ranew[r] = 0
}
inline take(r) {
  fence[B(r)]++; owner[B(r)] = r; rfence[r] = fence[B(r)]; rpos[r] = pos[B(r)]; ranew[r] = anew[B(r)]; rpc[r] = 1
}
#ifdef NOFENCE /* a commit doesn't ask whose the lease is */
#define MINE(r) there[B(r)]
#else
#define MINE(r) (there[B(r)] && fence[B(r)] == rfence[r])
#endif
#ifdef NOFROM /* a commit doesn't ask whether the position is where it begins */
#define FROM(b, from) true
#else
#define FROM(b, from) (pos[b] == (from))
#endif
inline program(r) {
  if
  /* nobody has the lease, or who had it is no more */
  :: d_step { rpc[r] == 0 && there[B(r)] && lk[B(r)] == NOBODY && pos[B(r)] < head && (owner[B(r)] == NOBODY || rpc[owner[B(r)]] == 0) -> take(r) }
  /* who has it is frozen, or slow */
  :: d_step { rpc[r] == 0 && there[B(r)] && lk[B(r)] == NOBODY && owner[B(r)] == OTHER(r) && rpc[OTHER(r)] > 0 && faults > 0 -> faults--; take(r) }
  :: d_step { rpc[r] == 1 && rpos[r] < head -> rto[r] = rpos[r] + 1; rpc[r] = 2 }
  :: d_step { rpc[r] == 1 && rpos[r] + 1 < head -> rto[r] = head; rpc[r] = 2 }
  :: d_step { rpc[r] == 2 && lk[B(r)] == NOBODY && MINE(r) && FROM(B(r), rpos[r]) -> lk[B(r)] = r; rpc[r] = 3 }
  :: d_step { rpc[r] == 2 && lk[B(r)] == NOBODY && MINE(r) && !FROM(B(r), rpos[r]) -> rpos[r] = pos[B(r)]; rto[r] = 0; rpc[r] = 1 }
#ifndef TWOTX
  /* its commit isn't answered, and not done yet; it reads the position, and goes on */
  :: d_step { rpc[r] == 2 && MINE(r) && late[B(r)] == 0 && faults > 0 -> faults--;
       late[B(r)] = rfence[r]; lfrom[B(r)] = rpos[r]; lto[B(r)] = rto[r]; lanew[B(r)] = ranew[r]; rpos[r] = pos[B(r)]; rto[r] = 0; rpc[r] = 1 }
#endif
  :: d_step { rpc[r] >= 1 && rpc[r] < 3 && !MINE(r) -> let_go(r) }
#ifdef TWOTX /* the effect is committed before the position */
  :: d_step { rpc[r] == 3 -> eff[B(r)] = eff[B(r)] + rto[r] - rpos[r]; lk[B(r)] = NOBODY; rpc[r] = 4 }
  :: d_step { rpc[r] == 4 && lk[B(r)] == NOBODY && MINE(r) -> pos[B(r)] = rto[r]; rpos[r] = rto[r]; assert(!ONCE || eff[B(r)] == pos[B(r)]); rpc[r] = 1; rto[r] = 0 }
  :: d_step { rpc[r] == 4 && !MINE(r) -> let_go(r) }
#else
  :: d_step { rpc[r] == 3 -> eff[B(r)] = eff[B(r)] + rto[r] - rpos[r]; pos[B(r)] = rto[r]; rpos[r] = rto[r];
       assert(!ONCE || eff[B(r)] == pos[B(r)]); assert(!OWN || ranew[r] == anew[B(r)]); lk[B(r)] = NOBODY; rpc[r] = 1; rto[r] = 0 }
#endif
  :: d_step { rpc[r] >= 1 && faults > 0 -> faults--; let_go(r) }
  fi
}

/* the database does an unanswered commit after all, or never */
inline unanswered(b) {
  if
  :: d_step { late[b] > 0 && lk[b] == NOBODY && there[b] && fence[b] == late[b] && FROM(b, lfrom[b]) ->
       eff[b] = eff[b] + lto[b] - lfrom[b]; pos[b] = lto[b]; assert(!ONCE || eff[b] == pos[b]); assert(!OWN || lanew[b] == anew[b]);
       late[b] = 0; lfrom[b] = 0; lto[b] = 0; lanew[b] = 0 }
  :: d_step { late[b] > 0 -> late[b] = 0; lfrom[b] = 0; lto[b] = 0; lanew[b] = 0 }
  fi
}

/* --- the switch to a build -------------------------------------------------- */
inline end_switch(b) {
  if :: rows == b -> rows = NOBODY :: else fi;
  if :: lk[sold[b]] == SWITCH(b) -> lk[sold[b]] = NOBODY :: else fi;
  spc[b] = 0; sold[b] = 0
}
/* a program changes over from an older build to one that wasn't live yet, an operator to
   one that was */
#define MAY(b, from) (there[b] && (b == 0 -> ops > 0 && from > 0 : from < b && !was[b]))
#define CAUGHTUP(b, from) (pos[b] >= pos[from])
inline switch(b) {
  if
#ifdef NOLIVE /* which one is live is read before the rows are locked */
  :: d_step { spc[b] == 0 && MAY(b, live) -> sold[b] = live; spc[b] = 5 }
  :: d_step { spc[b] == 5 && rows == NOBODY -> rows = b; spc[b] = 1 }
#else
#ifdef LOOKFIRST /* positions are compared before that of the live build is locked */
  :: d_step { spc[b] == 0 && rows == NOBODY && MAY(b, live) && CAUGHTUP(b, live) -> rows = b; sold[b] = live; spc[b] = 1 }
#else
  :: d_step { spc[b] == 0 && rows == NOBODY && MAY(b, live) -> rows = b; sold[b] = live; spc[b] = 1 }
#endif
#endif
#ifdef NOFREEZE /* the position of the live build isn't locked */
  :: d_step { spc[b] == 1 -> spc[b] = 2 }
#else
  :: d_step { spc[b] == 1 && lk[sold[b]] == NOBODY -> lk[sold[b]] = SWITCH(b); spc[b] = 2 }
#endif
#ifdef LOOKFIRST
  :: d_step { spc[b] == 2 -> spc[b] = 3 }
#else
  :: d_step { spc[b] == 2 && CAUGHTUP(b, sold[b]) -> spc[b] = 3 }
  :: d_step { spc[b] == 2 && !CAUGHTUP(b, sold[b]) -> end_switch(b) }
#endif
  :: d_step { spc[b] == 3 ->
       assert(!GONE || there[b]); assert(!BACK || eff[b] >= eff[live]);
       was[live] = 1; was[b] = 0; live = b;
       if :: b == 0 -> ops-- :: else fi;
       end_switch(b) }
  :: d_step { spc[b] >= 1 && faults > 0 -> faults--; end_switch(b) }
  fi
}

/* --- the cleaner removes what was live, an operator what wasn't yet ---------- */
inline remove(b) { assert(!GONE || b != live); there[b] = 0; was[b] = 0; owner[b] = NOBODY }
#ifdef FENCESANEW /* the fences of each build begin with the same number */
#define FIRST 0
#else
#define FIRST 100
#endif
inline cleaner(b) {
  if
#ifdef DROPLOOK /* it believes its look */
  :: d_step { dpc[b] == 0 && there[b] && was[b] -> dpc[b] = 1 }
  :: d_step { dpc[b] == 1 && rows == NOBODY -> remove(b); dpc[b] = 2 }
#else
  :: d_step { there[b] && was[b] && rows == NOBODY && lk[b] == NOBODY -> remove(b) }
#endif
#if OPS > 0
  :: d_step { there[b] && b > live && !was[b] && ops > 0 && rows == NOBODY && lk[b] == NOBODY -> ops--; remove(b) }
  :: d_step { !there[b] && b > live && !anew[b] && rows == NOBODY -> anew[b] = 1; there[b] = 1; pos[b] = 0; eff[b] = 0; fence[b] = FIRST }
#endif
  fi
}

#if BUILDS > 2
#define IDLE (rows == NOBODY && lk[0] == NOBODY && lk[1] == NOBODY && lk[2] == NOBODY)
#else
#define IDLE (rows == NOBODY && lk[0] == NOBODY && lk[1] == NOBODY)
#endif
init {
  d_step {
    there[0] = 1; there[1] = 1; lk[0] = NOBODY; lk[1] = NOBODY; owner[0] = NOBODY; owner[1] = NOBODY;
#if BUILDS > 2
    there[2] = 1; lk[2] = NOBODY; owner[2] = NOBODY
#endif
  }
  do
  :: d_step { head < EVENTS -> head++ }
  :: program(0)
  :: program(1)
  :: program(2)
  :: program(3)
  :: unanswered(0)
  :: unanswered(1)
  :: switch(0)
  :: switch(1)
  :: cleaner(0)
  :: cleaner(1)
#if BUILDS > 2
  :: program(4)
  :: program(5)
  :: unanswered(2)
  :: switch(2)
  :: cleaner(2)
#endif
  :: else -> break
  od;
  assert(!DONE || (IDLE && pos[live] == EVENTS && (OPS > 0 || live == BUILDS - 1)))
}
