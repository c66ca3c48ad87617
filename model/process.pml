/* A process's messages: what overtakes its start is set aside, and all are heard once.

   A message is handled in one transaction: its inbox row, unless letters of the key hold it up;
   the lock of the process's row; and, while the row says that something came early, another look
   for letters. One that comes before the start is put aside as early, in a transaction that also
   writes the process's row. The start marks all early letters for replay in its own transaction.

   Modelled: one process. Stream A has the start S, stream B the answers; a second start S2 comes
   by A, or by a stream of its own (SECOND 2); B may have two runners at once, each with all of its
   messages (RUNNERS 2). A transaction at every letter that may be handled, beside each other. READ
   COMMITTED: a statement is a step with a snapshot of its own, what it writes is seen after the commit,
   locks are held until then, and who waits for a lock keeps the snapshot that it came with.
   Faults, FB of them: a transaction ends without a commit; a stream comes again from its beginning.
   FAILS times a message is parked, before or after the row is read. An operator marks an early letter for
   replay OPS times, and parked ones always. Each message that is heard may end the process (ENDS).
   Left out: attempts, limits, discarded letters, timers; a letter is taken by one at a time.

   Asserted:
     ONCE   no second effect
     ORDER  the answers take effect in their order
     BEGIN  the process begins once, and nothing takes effect before
     STUCK  when nothing more can happen, nobody waits, and each message took effect, or was ignored
            because the process had ended

   Switches that must fail: see README.md. */
#ifndef FB
#define FB 1
#endif
#ifndef OPS
#define OPS 1
#endif
#ifndef FAILS
#define FAILS 0
#endif
#ifndef ENDS
#define ENDS 1
#endif
#ifndef SECOND /* 0: no second start, 1: by stream A, 2: by one of its own */
#define SECOND 1
#endif
#ifndef RUNNERS /* of stream B */
#define RUNNERS 1
#endif
#ifndef ANSWERS
#define ANSWERS 2
#endif
/* the properties; one that is 0 isn't asserted */
hidden byte ONCE = 1, ORDER = 1, BEGIN = 1, STUCK = 1;

/* messages: 0 is S, 1 is S2, the answers are 2, 3, 4 */
#define N 5
#define START(m) ((m) < 2)
#define SENT(m) ((m) == 0 || (m) == 1 && SECOND > 0 || (m) >= 2 && (m) < 2 + ANSWERS)
bit inbox[N], heard[N], ignored[N];
/* dead_letters: of each message its status, and those in the table with a lower seq. A seq is
   drawn by the insert: those of transactions that are open are among them. */
#define NONE 0
#define EARLY 1
#define HELD 2
#define REPLAY 3
#define PARKED 4
#define REPLAYED 5
byte st[N], less[N], drawn;
#ifdef EARLYHOLDS
#define FIRSTHOLDING EARLY
#else
#define FIRSTHOLDING HELD
#endif
#define HOLDS(m) (st[m] >= FIRSTHOLDING && st[m] <= PARKED)
#define HOLDING (HOLDS(0) | HOLDS(1) << 1 | HOLDS(2) << 2 | HOLDS(3) << 3 | HOLDS(4) << 4)
#define GOESON(m) (st[m] == HELD || st[m] == REPLAY)
/* processes */
#define AWAITED 1
#define RUNNING 2
#define ENDED 3
byte row; bit early, begun;
/* who has the locks: of the process's row or of its insert, of an inbox row's insert, of a letter */
byte rowlock, ilock[N], llock[N];

byte faults, ops, fails = FAILS, ends = ENDS;

/* Who handles: 0, 1 and 2 are runners of streams, 3 + m handles the letter of m. */
#define RUNNER(a) ((a) < 3)
#define ME(a) ((a) + 1)
byte at[3];                    /* a runner's message */
#define IDLE 0
#define WAITS 1                /* for the lock of the first statement's row, with its snapshot */
#define CLAIMED 2
#define WAITSROW 3             /* for the process's row, with an old snapshot */
#define RECHECK 4
#define INSERT 5               /* a start, and there is no row */
#define MARK 6                 /* a start: marks early letters */
#define COMMIT 7
#define APPEND 8               /* behind the others */
#define APPENDHEAD 9
#define APPENDWAITS 10
#define APPENDED 11
#define ASIDE 12               /* as early */
#define ASIDEROW 13
#define ASIDEDONE 14
#define PARK 15
#define MARKLATE 16
byte pc[8], head[3];
bit begins[8], clears[8], held[8];
byte marked;                   /* the letters that an open start has marked; only one can have */
hidden byte i;

inline undraw(m) {
  drawn = drawn & ~(1 << (m)); less[m] = 0;
  less[0] = less[0] & drawn; less[1] = less[1] & drawn; less[2] = less[2] & drawn; less[3] = less[3] & drawn; less[4] = less[4] & drawn
}
inline draw(m) { less[m] = drawn; drawn = drawn | 1 << (m) }
inline unlock(l, a) { if :: l == ME(a) -> l = 0 :: else fi }
inline ended(a, next) {
  unlock(rowlock, a);
  unlock(ilock[0], a); unlock(ilock[1], a); unlock(ilock[2], a); unlock(ilock[3], a); unlock(ilock[4], a);
  unlock(llock[0], a); unlock(llock[1], a); unlock(llock[2], a); unlock(llock[3], a); unlock(llock[4], a);
  if :: begins[a] -> marked = 0 :: else fi;
  begins[a] = 0; clears[a] = 0; held[a] = 0;
  if :: RUNNER(a) -> head[a] = 0 :: else fi;
  pc[a] = next
}
inline rollback(a, m, next) {
  if
  :: RUNNER(a) && (pc[a] == APPENDED || pc[a] == ASIDEROW || pc[a] == ASIDEDONE) -> undraw(m)
  :: else
  fi;
  ended(a, next)
}

/* --- the transaction that handles ------------------------------------------ */
/* letters before one's own; before what has none: all */
#define BEFORE(a, m) (RUNNER(a) -> HOLDING : HOLDING & less[m])
#define OTHERS(a, m) (HOLDING & ~(1 << (m)))
inline readrow(a, m) {
  rowlock = ME(a);
  if
  :: row == ENDED -> pc[a] = COMMIT
#ifdef NORECHECK
  :: row == RUNNING -> pc[a] = COMMIT
#else
#ifdef LETTERSGO
  :: row == RUNNING && (!early || !RUNNER(a)) -> pc[a] = COMMIT
  :: row == RUNNING && early && RUNNER(a) -> pc[a] = RECHECK
#else
  :: row == RUNNING && !early -> pc[a] = COMMIT
  :: row == RUNNING && early -> pc[a] = RECHECK
#endif
#endif
  :: row == AWAITED && START(m) -> begins[a] = 1; pc[a] = MARK
  :: row == AWAITED && !START(m) -> rollback(a, m, ASIDE)
  fi
}
inline setearly(w) { if :: marked & (1 << (w)) -> st[w] = REPLAY :: else fi }
inline commit(a, m, ending) {
  i = (m);
  if
  :: row == ENDED -> ignored[i] = 1
  :: else ->
     assert(!ONCE || !heard[i]); heard[i] = 1;
     if
     :: begins[a] -> assert(!BEGIN || !begun); begun = 1; row = RUNNING;
#ifdef FLAGLATE
        early = (marked != 0);
#endif
        setearly(0); setearly(1); setearly(2); setearly(3); setearly(4)
     :: else -> assert(!BEGIN || begun)
     fi;
     assert(!ORDER || i < 3 || heard[i-1] || ignored[i-1]);
     if :: clears[a] -> early = 0 :: else fi;
     if :: ending -> ends--; row = ENDED :: else fi
  fi;
  if :: RUNNER(a) -> inbox[i] = 1; at[a]++ :: else -> st[i] = REPLAYED; undraw(i) fi;
  i = 0;
#ifdef MARKSLATER
  if :: begins[a] -> ended(a, MARKLATE) :: else -> ended(a, IDLE) fi
#else
  ended(a, IDLE)
#endif
}
#define EARLIES ((st[0] == EARLY) | (st[1] == EARLY) << 1 | (st[2] == EARLY) << 2 | (st[3] == EARLY) << 3 | (st[4] == EARLY) << 4)
#define UNLOCKED(w) (st[w] != EARLY || llock[w] == 0)
inline locks(a, w) { if :: marked & (1 << (w)) -> llock[w] = ME(a) :: else fi }
#ifdef NOROW
#define BLIND(a) 1
#else
#ifdef BACKNOROW
#define BLIND(a) (!RUNNER(a))
#else
#define BLIND(a) 0
#endif
#endif
inline handle(a, m) {
  if
#ifdef OLDSNAPSHOT
  :: d_step { pc[a] == CLAIMED && row != NONE -> held[a] = (BEFORE(a, m) != 0); pc[a] = WAITSROW }
  :: d_step { pc[a] == WAITSROW && rowlock == 0 -> readrow(a, m) }
  :: d_step { pc[a] == RECHECK && held[a] -> rollback(a, m, IDLE) }
  :: d_step { pc[a] == RECHECK && !held[a] -> clears[a] = (OTHERS(a, m) == 0); pc[a] = COMMIT }
#else
  :: d_step { pc[a] == CLAIMED && row != NONE && rowlock == 0 -> readrow(a, m) }
  :: d_step { pc[a] == RECHECK && BEFORE(a, m) != 0 -> rollback(a, m, IDLE) }
#ifdef CLEARSSOON
  :: d_step { pc[a] == RECHECK && BEFORE(a, m) == 0 -> clears[a] = 1; pc[a] = COMMIT }
#else
  :: d_step { pc[a] == RECHECK && BEFORE(a, m) == 0 -> clears[a] = (OTHERS(a, m) == 0); pc[a] = COMMIT }
#endif
#endif
  :: d_step { pc[a] == CLAIMED && row == NONE -> if :: START(m) -> pc[a] = INSERT :: else -> rollback(a, m, ASIDE) fi }
#ifdef UPSERTS
  :: d_step { pc[a] == INSERT && row != NONE && rowlock == 0 -> rowlock = ME(a); begins[a] = 1; pc[a] = MARK }
#else
  :: d_step { pc[a] == INSERT && row != NONE -> rollback(a, m, IDLE) }
#endif
  :: d_step { pc[a] == INSERT && row == NONE && rowlock == 0 -> rowlock = ME(a); begins[a] = 1; pc[a] = MARK }
#ifdef MARKSLATER
  :: d_step { pc[a] == MARK -> pc[a] = COMMIT }
  :: d_step { pc[a] == MARKLATE && UNLOCKED(0) && UNLOCKED(1) && UNLOCKED(2) && UNLOCKED(3) && UNLOCKED(4) -> marked = EARLIES;
       setearly(0); setearly(1); setearly(2); setearly(3); setearly(4); marked = 0; pc[a] = IDLE }
#else
  :: d_step { pc[a] == MARK && UNLOCKED(0) && UNLOCKED(1) && UNLOCKED(2) && UNLOCKED(3) && UNLOCKED(4) -> marked = EARLIES;
       locks(a, 0); locks(a, 1); locks(a, 2); locks(a, 3); locks(a, 4); pc[a] = COMMIT }
#endif
  :: d_step { pc[a] == COMMIT -> commit(a, m, 0) }
  :: d_step { pc[a] == COMMIT && row != ENDED && ends > 0 -> commit(a, m, 1) }
  :: d_step { pc[a] == COMMIT && row != ENDED && fails > 0 -> fails--; rollback(a, m, PARK) }
  :: d_step { pc[a] == CLAIMED && fails > 0 -> fails--; rollback(a, m, PARK) }
  /* set aside: with the process's row */
  :: d_step { pc[a] == ASIDEROW && BLIND(a) -> pc[a] = ASIDEDONE }
  :: d_step { pc[a] == ASIDEROW && !BLIND(a) && rowlock == 0 && row <= AWAITED -> rowlock = ME(a); pc[a] = ASIDEDONE }
  :: d_step { pc[a] == ASIDEROW && !BLIND(a) && rowlock == 0 && row > AWAITED -> rollback(a, m, IDLE) }
  :: d_step { pc[a] == ASIDEDONE -> i = (m); st[i] = EARLY;
#ifndef NOINBOX
       inbox[i] = 1;
#endif
       if
       :: BLIND(a)
       :: else -> row = AWAITED;
#ifndef FLAGLATE
          early = 1;
#endif
          skip
       fi;
       if :: RUNNER(a) -> at[a]++ :: else fi; i = 0; ended(a, IDLE) }
  fi
}

/* --- a runner of a stream's messages from first to last --------------------- */
#ifdef NOINBOX /* a message has one letter here: while that is open it doesn't come again */
#define COMES(m) (st[m] == NONE || st[m] == REPLAYED)
#else
#define COMES(m) 1
#endif
#define FIRST(m) ((HOLDS(m)) && (HOLDING & less[m]) == 0)
inline runner(a, first, last) {
  if
  :: d_step { pc[a] == IDLE && at[a] <= last && inbox[at[a]] -> at[a]++ }
  :: d_step { pc[a] == IDLE && at[a] <= last && !inbox[at[a]] && COMES(at[a]) ->
       if
       :: HOLDING != 0 -> pc[a] = APPEND
       :: HOLDING == 0 && ilock[at[a]] == 0 -> ilock[at[a]] = ME(a); pc[a] = CLAIMED
       :: HOLDING == 0 && ilock[at[a]] != 0 -> pc[a] = WAITS
       fi }
  :: d_step { (pc[a] == WAITS || pc[a] == APPEND || pc[a] == ASIDE || pc[a] == PARK) && inbox[at[a]] -> pc[a] = IDLE }
  :: d_step { pc[a] == WAITS && !inbox[at[a]] && ilock[at[a]] == 0 -> ilock[at[a]] = ME(a); pc[a] = CLAIMED }
  :: handle(a, at[a])
  :: d_step { pc[a] == APPEND && !inbox[at[a]] && ilock[at[a]] == 0 -> ilock[at[a]] = ME(a); pc[a] = APPENDHEAD }
  :: d_step { pc[a] == APPENDHEAD ->
       if
       :: HOLDING == 0 -> rollback(a, at[a], IDLE)
       :: FIRST(0) -> head[a] = 0; pc[a] = APPENDWAITS
       :: FIRST(1) -> head[a] = 1; pc[a] = APPENDWAITS
       :: FIRST(2) -> head[a] = 2; pc[a] = APPENDWAITS
       :: FIRST(3) -> head[a] = 3; pc[a] = APPENDWAITS
       :: FIRST(4) -> head[a] = 4; pc[a] = APPENDWAITS
       fi;
       if
       :: pc[a] == APPENDWAITS && llock[head[a]] == 0 -> llock[head[a]] = ME(a); head[a] = 0; draw(at[a]); pc[a] = APPENDED
       :: else
       fi }
  :: d_step { pc[a] == APPENDWAITS && llock[head[a]] == 0 ->
       if
       :: HOLDS(head[a]) -> llock[head[a]] = ME(a); head[a] = 0; draw(at[a]); pc[a] = APPENDED
       :: else -> rollback(a, at[a], IDLE)
       fi }
  :: d_step { pc[a] == APPENDED -> inbox[at[a]] = 1; st[at[a]] = HELD; at[a]++; ended(a, IDLE) }
  :: d_step { pc[a] == ASIDE && !inbox[at[a]] && ilock[at[a]] == 0 -> ilock[at[a]] = ME(a); draw(at[a]); pc[a] = ASIDEROW }
  :: d_step { pc[a] == PARK && !inbox[at[a]] && ilock[at[a]] == 0 -> inbox[at[a]] = 1; draw(at[a]); st[at[a]] = PARKED; at[a]++; pc[a] = IDLE }
  :: d_step { faults > 0 && (pc[a] != IDLE || at[a] > first) -> faults--; rollback(a, at[a], IDLE); at[a] = first }
  fi
}

/* --- who handles the letter of m -------------------------------------------- */
inline replayer(a, m) {
  if
  :: d_step { pc[a] == IDLE && GOESON(m) && (HOLDING & less[m]) == 0 ->
       if :: llock[m] == 0 -> llock[m] = ME(a); pc[a] = CLAIMED :: else -> pc[a] = WAITS fi }
  :: d_step { pc[a] == WAITS && llock[m] == 0 -> llock[m] = ME(a); pc[a] = CLAIMED }
  :: handle(a, m)
  :: d_step { pc[a] == ASIDE && llock[m] == 0 -> llock[m] = ME(a); pc[a] = ASIDEROW }
  :: d_step { pc[a] == PARK && llock[m] == 0 -> st[m] = PARKED; pc[a] = IDLE }
  :: d_step { faults > 0 && pc[a] != IDLE -> faults--; rollback(a, m, IDLE) }
  /* an operator */
  :: d_step { ops > 0 && st[m] == EARLY && llock[m] == 0 -> ops--; st[m] = REPLAY }
  :: d_step { st[m] == PARKED && llock[m] == 0 -> st[m] = REPLAY }
  fi
}

#define WELL(m) (!SENT(m) || heard[m] || ignored[m])
#define QUIET (pc[0] + pc[1] + pc[2] + pc[3] + pc[4] + pc[5] + pc[6] + pc[7] == 0)
init {
  d_step { at[1] = 2; at[2] = (SECOND == 2 -> 1 : 2) };
  if :: faults = FB :: FB > 0 -> faults = 0 :: FB > 1 -> faults = 1 fi;
  if :: ops = OPS :: OPS > 0 -> ops = 0 :: OPS > 1 -> ops = 1 fi;
  do
  :: runner(0, 0, (SECOND == 1 -> 1 : 0))
  :: runner(1, 2, ANSWERS + 1)
#if SECOND == 2
  :: runner(2, 1, 1)
#elif RUNNERS == 2
  :: runner(2, 2, ANSWERS + 1)
#endif
  :: replayer(3, 0)
#if SECOND > 0
  :: replayer(4, 1)
#endif
  :: replayer(5, 2)
  :: replayer(6, 3)
#if ANSWERS > 2
  :: replayer(7, 4)
#endif
  :: else -> break
  od;
  assert(!STUCK || QUIET && WELL(0) && WELL(1) && WELL(2) && WELL(3) && WELL(4))
}
