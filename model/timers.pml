/* A timer's row: set, moved, stopped, sent when it is due, and handled once.

   Modelled: an aggregate with its row's lock and two timers, of which the first is due
   before the second; both are of one key. A unit sets, moves and stops them, in any
   order, behind the aggregate's lock; two promoters, each with a look, row locks that
   it doesn't wait for, and a commit; messages, each up to twice and in two handlers at
   once; handlers, which look the row up, lock the aggregate, delete the row, and must
   have found it; an operator who stops both. Each may end before its commit, by a crash
   or as its transaction is rolled back.
   Abstracted: time: what waits may be due at any step. The inbox, which only adds to the
   rule: a copy is harmless without it. The outbox and the broker: what is sent arrives.

   Asserted:
     STOPPED   no effect of a timer once a stop or a move of it has committed
     ONCE      no second effect
     LOST      when nothing more can happen, each timer that wasn't stopped took effect
     ORDER     of two that waited together the first isn't sent after the second
     SEQ       of one key, what the promoters insert has its numbers in the order of commits
     DEADLOCK  nobody waits for ever

   Switches that must fail: see README.md. */
#ifndef FB
#define FB 1
#endif
#ifndef OPS
#define OPS 2
#endif
#define SETS 3
#define UNIT 1
#define PROMOTER(n) (2 + (n))
#define HANDLER(n) (4 + (n))
#define OPERATOR 6
/* the properties; one that is 0 isn't asserted */
hidden byte STOPPED = 1, ONCE = 1, LOST = 1, ORDER = 1, SEQ = 1, DEADLOCK = 1;

byte faults = FB, ops = OPS;
byte agg, advisory;          /* who has the locks */
byte row[2], lk[2];          /* by name: the timer's id, 0: none, and who has locked it */
bit sent[2];
/* by id, from 1 on: its name, whether it was stopped, its messages, its effects, and
   whether the other one that waited beside it was sent before it */
byte nextid = 1;
bit name[SETS+1], gone[SETS+1], took[SETS+1], passed[SETS+1], was[SETS+1];
byte msg[SETS+1];
byte upc, what[2]; bit ufirst;        /* a unit: 0 leaves, 1 sets, 2 stops */
byte ppc[2], seen[4], pseq[2]; byte nextseq = 1, lastseq;
bit has[4];
byte hpc[2], hid[2];
byte opc; bit ohas[2]; bit asked;
hidden byte i;
#define WAITS(s) (row[s] != 0 && !sent[s])

/* --- the unit --------------------------------------------------------------- */
inline choose(a, b, first) {
  d_step { upc == 0 && ops > 0 && nextid + (a == 1) + (b == 1) <= SETS + 1 ->
    ops--; what[0] = a; what[1] = b; ufirst = first; upc = 1 }
}
inline ended_unit() {
  if :: lk[0] == UNIT -> lk[0] = 0 :: else fi;
  if :: lk[1] == UNIT -> lk[1] = 0 :: else fi;
  if :: agg == UNIT -> agg = 0 :: else fi;
  upc = 0; what[0] = 0; what[1] = 0; ufirst = 0
}
inline write(s) {
  if
  :: what[s] == 0
  :: else ->
     if :: row[s] != 0 -> gone[row[s]] = 1 :: else fi;
     if
     :: what[s] == 1 -> row[s] = nextid; sent[s] = 0; name[nextid] = s; was[nextid] = 1; nextid++
#ifdef STOPWAITING
     :: what[s] == 2 && sent[s]
     :: what[s] == 2 && !sent[s] -> row[s] = 0
#else
     :: what[s] == 2 -> row[s] = 0; sent[s] = 0
#endif
     fi
  fi
}
#define LOCKED(s) (what[s] == 0 || lk[s] == UNIT)
inline unit() {
  if
  :: choose(1, 0, 0)
  :: choose(0, 1, 0)
  :: choose(1, 1, 0)
  :: choose(1, 1, 1)
  :: choose(2, 0, 0)
  :: choose(0, 2, 0)
  :: choose(2, 1, 1)
  :: choose(1, 2, 0)
  :: d_step { upc == 1 && agg == 0 -> agg = UNIT; upc = 2 }
  :: d_step { upc == 2 && (what[ufirst] == 0 || lk[ufirst] == 0) -> if :: what[ufirst] != 0 -> lk[ufirst] = UNIT :: else fi; upc = 3 }
  :: d_step { upc == 3 && (what[1-ufirst] == 0 || lk[1-ufirst] == 0) -> if :: what[1-ufirst] != 0 -> lk[1-ufirst] = UNIT :: else fi; upc = 4 }
  :: d_step { upc == 4 -> write(0); write(1); ended_unit() }
  :: d_step { upc >= 2 && faults > 0 -> faults--; ended_unit() }
  fi
}

/* --- promoters -------------------------------------------------------------- */
#define SEEN(n, s) seen[2 * (n) + (s)]
#define HAS(n, s) has[2 * (n) + (s)]
#ifdef NOADVISORY
#define FREE 1
#else
#define FREE (advisory == 0)
#endif
#ifdef SKIPONLY
#define BEHIND(n) 1
#define COULD ((WAITS(0) && lk[0] == 0) || (WAITS(1) && lk[1] == 0))
#else
/* a row that is locked holds those of its key behind it */
#define BEHIND(n) (SEEN(n, 0) == 0 || HAS(n, 0))
#define COULD (WAITS(0) -> lk[0] == 0 : WAITS(1) && lk[1] == 0)
#endif
#ifdef NORECHECK
#define SAME(n, s) 1
#else
#define SAME(n, s) (row[s] == SEEN(n, s) && !sent[s])
#endif
inline ended_promoter(n) {
  if :: lk[0] == PROMOTER(n) -> lk[0] = 0 :: else fi;
  if :: lk[1] == PROMOTER(n) -> lk[1] = 0 :: else fi;
  if :: advisory == PROMOTER(n) -> advisory = 0 :: else fi;
  ppc[n] = 0; SEEN(n, 0) = 0; SEEN(n, 1) = 0; HAS(n, 0) = 0; HAS(n, 1) = 0; pseq[n] = 0
}
inline take(n, s) {
  if
  :: SEEN(n, s) != 0 && lk[s] == 0 && SAME(n, s) -> lk[s] = PROMOTER(n); HAS(n, s) = 1
  :: else
  fi
}
#ifdef WAITROWS
#define MAYTAKE(n, s) (SEEN(n, s) == 0 || lk[s] == 0)
#else
#define MAYTAKE(n, s) 1
#endif
inline send(n, s, copies) {
  if
  :: HAS(n, s) -> assert(!ORDER || !passed[SEEN(n, s)]); msg[SEEN(n, s)] = copies
  :: else
  fi
}
inline pass(n) {
  if :: HAS(n, 1) && SEEN(n, 0) != 0 && !HAS(n, 0) -> passed[SEEN(n, 0)] = 1 :: else fi
}
inline mark(n, s) { if :: HAS(n, s) -> sent[s] = 1 :: else fi }
inline messages(n, copies) {
  assert(!SEQ || pseq[n] > lastseq); lastseq = pseq[n];
  send(n, 0, copies); send(n, 1, copies); pass(n)
}
inline promoter(n) {
  if
  :: d_step { ppc[n] == 0 && FREE && COULD -> advisory = PROMOTER(n);
       if :: WAITS(0) -> SEEN(n, 0) = row[0] :: else fi;
       if :: WAITS(1) -> SEEN(n, 1) = row[1] :: else fi;
       ppc[n] = 1 }
  :: d_step { ppc[n] == 1 && MAYTAKE(n, 0) -> take(n, 0); ppc[n] = 2 }
  :: d_step { ppc[n] == 2 && MAYTAKE(n, 1) -> if :: BEHIND(n) -> take(n, 1) :: else fi; ppc[n] = 3 }
  :: d_step { ppc[n] == 3 && !HAS(n, 0) && !HAS(n, 1) -> ended_promoter(n) }
  :: d_step { ppc[n] == 3 && (HAS(n, 0) || HAS(n, 1)) -> pseq[n] = nextseq; nextseq++; ppc[n] = 4 }
#ifdef TWOTX
  :: d_step { ppc[n] == 4 -> mark(n, 0); mark(n, 1); if :: lk[0] == PROMOTER(n) -> lk[0] = 0 :: else fi; if :: lk[1] == PROMOTER(n) -> lk[1] = 0 :: else fi; ppc[n] = 5 }
  :: d_step { ppc[n] == 5 -> messages(n, 1); ended_promoter(n) }
#else
  :: d_step { ppc[n] == 4 -> mark(n, 0); mark(n, 1); messages(n, 1); ended_promoter(n) }
  :: d_step { ppc[n] == 4 -> mark(n, 0); mark(n, 1); messages(n, 2); ended_promoter(n) }
#endif
  :: d_step { ppc[n] >= 3 && faults > 0 -> faults--; ended_promoter(n) }
  fi
}

/* --- handlers --------------------------------------------------------------- */
#ifdef KEEPID /* a timer that is set anew keeps its id */
#define THERE(g) (row[name[g]] != 0)
#else
#define THERE(g) (row[name[g]] == (g))
#endif
#ifdef DELETEFIRST
#define ATAGG 2
#define ATROW 1
#else
#define ATAGG 1
#define ATROW 2
#endif
inline ended_handler(n) {
  if :: lk[0] == HANDLER(n) -> lk[0] = 0 :: else fi;
  if :: lk[1] == HANDLER(n) -> lk[1] = 0 :: else fi;
  if :: agg == HANDLER(n) -> agg = 0 :: else fi;
  hpc[n] = 0; hid[n] = 0
}
inline done(g) { if :: msg[g] > 0 -> msg[g]-- :: else fi }
inline look(n, g) {
  d_step { hpc[n] == 0 && msg[g] > 0 ->
    if
    :: THERE(g) -> hpc[n] = 1; hid[n] = g
    :: else -> done(g)
    fi }
}
inline handler(n) {
  if
  :: look(n, 1)
  :: look(n, 2)
  :: look(n, 3)
  :: d_step { hpc[n] == ATAGG && agg == 0 -> agg = HANDLER(n); hpc[n]++ }
#ifdef NODELETE
  :: d_step { hpc[n] == ATROW -> hpc[n]++ }
#else
  :: d_step { hpc[n] == ATROW && THERE(hid[n]) && lk[name[hid[n]]] == 0 -> lk[name[hid[n]]] = HANDLER(n); hpc[n]++ }
#ifdef NOTFOUND
  :: d_step { hpc[n] == ATROW && !THERE(hid[n]) -> hpc[n]++ }
#else
  :: d_step { hpc[n] == ATROW && !THERE(hid[n]) -> i = hid[n]; done(i); i = 0; ended_handler(n) }
#endif
#endif
  :: d_step { hpc[n] == 3 -> i = hid[n];
       assert(!STOPPED || !gone[i]); assert(!ONCE || !took[i]); took[i] = 1;
       if :: lk[name[i]] == HANDLER(n) -> row[name[i]] = 0; sent[name[i]] = 0 :: else fi;
       done(i); i = 0; ended_handler(n) }
  :: d_step { hpc[n] >= 2 && faults > 0 -> faults--; ended_handler(n) }
  fi
}

/* --- an operator: stops both, and looks again at what was locked ------------ */
#ifdef OPERWAITS
#define MAYHAVE(s) (row[s] == 0 || lk[s] == 0)
#else
#define MAYHAVE(s) 1
#endif
inline have(s) { if :: row[s] != 0 && lk[s] == 0 -> lk[s] = OPERATOR; ohas[s] = 1 :: else fi }
inline stop(s) { if :: ohas[s] -> gone[row[s]] = 1; row[s] = 0; sent[s] = 0; lk[s] = 0; ohas[s] = 0 :: else fi }
inline operator() {
  if
  :: d_step { opc == 0 && !asked && nextid > 1 -> asked = 1; opc = 1 }
  :: d_step { opc == 1 && MAYHAVE(1) -> have(1); opc = 2 }
  :: d_step { opc == 2 && MAYHAVE(0) -> have(0); opc = 3 }
  :: d_step { opc == 3 -> stop(0); stop(1); opc = 0 }
  fi
}

#define WELL(g) (!was[g] || gone[g] || took[g])
#define IDLE (upc == 0 && ppc[0] == 0 && ppc[1] == 0 && hpc[0] == 0 && hpc[1] == 0 && opc == 0)
init {
  do
  :: unit()
  :: promoter(0)
  :: promoter(1)
  :: handler(0)
  :: handler(1)
  :: operator()
  :: else -> break
  od;
  assert(!DEADLOCK || IDLE);
  assert(!LOST || !IDLE || (WELL(1) && WELL(2) && WELL(3)))
}
