/* The outbox lane: ownership, takeover, claim, calls, settle.

   Modelled: one target broker, one partition, two workers that may each own it.
   Rows 0, 1, 2 are of key 0, row 3 is of key 1; a row's number is its seq. A
   claim takes the leading runs of due rows of all keys that aren't blocked; its
   call goes to the broker as a request, whose messages arrive one by one, in
   order, and may still arrive after nobody waits for them any more. What may go
   wrong is drawn from a budget of FB faults: kill, lease expiry under a live
   owner, acknowledgement lost, connection lost with what is on it, call timed out
   with the request still on the wire, row refused for now (transient), for ever
   (permanent) or because nobody is there (unavailable), clean stop.
   Abstracted: time (a lease may end, and a failed row may get due, at any step),
   the claim's and the settle's statements (atomic: see the tests that race them on
   PostgreSQL), rows that commit later (memory.pml, commit.pml), quarantine
   (crash.pml), the breaker (breaker.pml).

   Asserted, in every state or step:
     ORDER      rows of a key reach the broker first in the order of seq, but for
                those behind which the key went on because they were abandoned
     DUPLICATE  a row reaches the broker twice only after a kill, an expiry or an
                answer that never came
     STALE      a settle that comes after a takeover changes nothing
     HEAD       one row of a key pays for a failed call, and it is the first
                unfinished one
     BOUND      no row is claimed more often than MAXATT times, lost claims apart
     UNDONE     no row that was published changes
     FENCE      no two workers think that they hold the same fence
     LOST       a published row has reached the broker
   and when nothing more can happen:
     STUCK      every row is finished, or waits behind one that is held

   Variants that must hold: HOLD (an abandoned row holds its key; with STRICT: then
   nothing excuses a break of order), OPER (an operator decides on abandoned rows,
   once), SLOTS=2 (a worker has two claims out, never with one key in both),
   PGUARD (a settle is guarded by the partition's fence as well), ONEPER (one row of
   a key per call).
   Switches that must fail: see README.md. */
#ifndef FB
#define FB 3
#endif
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef MAXATT
#define MAXATT 2
#endif
#ifndef MAXLOSS
#define MAXLOSS 2 /* losses that abandon a row; the rule has 5, which takes more faults */
#endif
#ifndef BATCH
#define BATCH 3
#endif

#define N 4 /* rows */
#define NR 4 /* requests */
#define KEY(m) ((m) == 3 -> 1 : 0)
#define KEYROWS(m) ((m) == 3 -> 8 : 7) /* the rows of m's key, as bits */
#define BIT(m) (1 << (m))
#define FLIGHT(w, s) ((w) * 2 + (s))

/* rows */
#define PEND 0
#define PROC 1
#define PUB 2
#define FAIL 3 /* not due, or held back by the lane's breaker */
#define ABAN 4
#define GONE 5 /* abandoned, and skipped by an operator */
byte st[N];
byte att[N];     /* attempts - losses */
byte lo[N];      /* losses */
byte rf[N];      /* the fence that claimed it; stands for claim_id too */
byte del[N];     /* times that the broker got it: 0, 1, 2 for more */
bit excused[N];  /* abandoned once: those behind it may have overtaken it */
bit rowexp[N];   /* ROWEXP: its own lock ran out */

/* the partition: owner 1 or 2, 0 nobody; live: its lease runs */
byte owner, fence;
bit live;
byte myf[2]; /* the fence that a worker thinks it holds, 0 none */

/* flights: a worker's claims */
byte ph[4]; /* 0 free, 1 claimed, 2 sent */
byte cm[4]; /* claimed rows */
byte qi[4]; /* its request */

/* requests: todo is still on the wire, the others are answers */
bit act[NR], det[NR]; /* in use; nobody waits for it any more */
byte qf[NR], todo[NR], okm[NR], trm[NR], pem[NR], unm[NR];

/* the properties; one that is 0 isn't asserted */
hidden byte BOUND = 1, ORDER = 1, DUPLICATE = 1, HEAD = 1, STALE = 1, UNDONE = 1, FENCE = 1, LOST = 1, STUCK = 1;

byte budget = FB;
bit fault, oper = 1;
hidden byte i, n, x, r, blk, msk, paid, ex;

#define UNF(m) (st[m] == PEND || st[m] == PROC || st[m] == FAIL)
#define ALLROWS(p) (p(0) && p(1) && p(2) && p(3))
#define SOMEUNF (UNF(0) || UNF(1) || UNF(2) || UNF(3))
#define OWNS(w) (myf[w] != 0 && myf[w] == fence && owner == (w)+1)

/* --- switches ------------------------------------------------------------- */
#ifdef STRICT
#define EXCUSED(m) 0
#else
#define EXCUSED(m) excused[m]
#endif
/* finished: not in a key's way. blocking: in the way of those behind it. */
#ifdef HOLD
#define FIN(m) (st[m] == PUB || st[m] == GONE)
#else
#define FIN(m) (st[m] == PUB || st[m] == ABAN || st[m] == GONE)
#endif
#ifdef NOCLAIMGUARD
#define MAYCLAIM(w) (myf[w] != 0)
#else
#define MAYCLAIM(w) (OWNS(w) && live)
#endif
#ifdef RETAKE /* the claim takes rows that older fences hold */
#define OLD(m, f) (st[m] == PROC && rf[m] < (f))
#else
#define OLD(m, f) 0
#endif
#ifdef ROWEXP /* a row's own lock decides */
#define RX(m) (st[m] == PROC && rowexp[m])
#else
#define RX(m) 0
#endif
#ifdef NOHEAD /* a failed head doesn't hold the others */
#define PASSED1(m) || st[m] == FAIL
#else
#define PASSED1(m)
#endif
#ifdef PIPEBAD /* nor does one in one's own hand */
#define PASSED2(m, f) || st[m] == PROC && rf[m] == (f)
#else
#define PASSED2(m, f)
#endif
#define TAKEABLE(m, f) (st[m] == PEND || OLD(m, f) || RX(m))
#define BLOCKS(m, f) (!(FIN(m) PASSED1(m) PASSED2(m, f)))
/* is a claim possible? keeps the graph free of steps that do nothing */
#define CANCLAIM(f) (TAKEABLE(3, f) || TAKEABLE(0, f) || TAKEABLE(1, f) && (!BLOCKS(0, f)) || \
  TAKEABLE(2, f) && (!BLOCKS(0, f)) && (!BLOCKS(1, f)))

/* --- claim ------------------------------------------------------------------ */
inline choose(f) {
  i = 0; blk = 0; msk = 0; n = 0;
  do
  :: i < N ->
    if
    :: TAKEABLE(i, f) && !(blk & BIT(KEY(i))) && n < BATCH ->
      msk = msk | BIT(i); n++;
#ifdef ONEPER
      blk = blk | BIT(KEY(i))
#endif
    :: else -> if :: BLOCKS(i, f) -> blk = blk | BIT(KEY(i)) :: else fi
    fi; i++
  :: else -> break
  od; i = 0; n = 0; blk = 0
}
inline claim(w, s) {
  d_step { MAYCLAIM(w) && ph[FLIGHT(w,s)] == 0 && (s == 0 || ph[FLIGHT(w,0)] != 0) && CANCLAIM(myf[w]) ->
    choose(myf[w]);
    i = 0;
    do
    :: i < N ->
      if
      :: msk & BIT(i) ->
        st[i] = PROC; rf[i] = myf[w]; rowexp[i] = 0; att[i]++;
        assert(!BOUND || att[i] <= MAXATT);
#ifdef MARKFIRST
        st[i] = PUB;
#endif
      :: else
      fi; i++
    :: else -> break
    od;
    cm[FLIGHT(w,s)] = msk; ph[FLIGHT(w,s)] = (msk != 0 -> 1 : 0); i = 0; msk = 0 }
}

/* --- calls -------------------------------------------------------------------- */
inline freereq(q) {
  act[q] = 0; det[q] = 0; qf[q] = 0; todo[q] = 0; okm[q] = 0; trm[q] = 0; pem[q] = 0; unm[q] = 0
}
inline shangup(w, s) {
  d_step { ph[FLIGHT(w,s)] == 1 && (!act[0] || !act[1] || !act[2] || !act[3]) ->
    r = 0; do :: act[r] -> r++ :: else -> break od;
    act[r] = 1; todo[r] = cm[FLIGHT(w,s)]; qf[r] = myf[w]; qi[FLIGHT(w,s)] = r; ph[FLIGHT(w,s)] = 2; r = 0 }
}
/* the next message of request q: in order on the wire */
#define NEXT(q) ((todo[q] & 1) -> 0 : ((todo[q] & 2) -> 1 : ((todo[q] & 4) -> 2 : 3)))
inline arrive(q) {
  x = NEXT(q); todo[q] = todo[q] & ~BIT(x);
  if
  :: del[x] == 0 ->
    ex = 0; i = x+1;
    do :: i < N -> if :: KEY(i) == KEY(x) && del[i] > 0 -> ex = 1 :: else fi; i++ :: else -> break od; i = 0;
    assert(!ORDER || !ex || EXCUSED(x));
    ex = 0; del[x] = 1
  :: else ->
    assert(!DUPLICATE || fault);
    del[x] = 2
  fi
}
inline reject(q) {
  x = NEXT(q); todo[q] = todo[q] & ~BIT(x);
#ifndef NOPREFIX
  todo[q] = todo[q] & ~KEYROWS(x); /* the adapter sends nothing more of this key */
#endif
}
inline answered(q) { if :: todo[q] == 0 && det[q] -> freereq(q) :: else fi; x = 0 }
inline broker(q) {
  if
  :: d_step { act[q] && todo[q] != 0 -> arrive(q); okm[q] = okm[q] | BIT(x); answered(q) }
  /* the acknowledgement is lost */
  :: d_step { act[q] && todo[q] != 0 && budget > 0 && !det[q] -> budget--; fault = 1; arrive(q); answered(q) }
  /* transient, permanent, unavailable */
  :: d_step { act[q] && todo[q] != 0 && budget > 0 -> budget--; reject(q); trm[q] = trm[q] | BIT(x); answered(q) }
  :: d_step { act[q] && todo[q] != 0 && budget > 0 -> budget--; reject(q); pem[q] = pem[q] | BIT(x); answered(q) }
  :: d_step { act[q] && todo[q] != 0 && budget > 0 -> budget--; unm[q] = unm[q] | todo[q]; todo[q] = 0; answered(q) }
  /* the connection is lost, and what is on it */
  :: d_step { act[q] && todo[q] != 0 && budget > 0 -> budget--; fault = 1;
#ifndef NOPREFIX
       todo[q] = 0;
#else
       x = NEXT(q); todo[q] = todo[q] & ~BIT(x);
#endif
       answered(q) }
  fi
}

/* --- settle ----------------------------------------------------------------- */
#ifdef NOFENCE
#define MINE(m, f) 1
#else
#ifdef PGUARD
#define MINE(m, f) (st[m] == PROC && rf[m] == (f) && fence == (f))
#else
#define MINE(m, f) (st[m] == PROC && rf[m] == (f))
#endif
#endif
#ifdef NOCUT /* rows behind a failed one pay as well */
#define BEHIND(m) 0
#else
#define BEHIND(m) (blk & BIT(KEY(m)))
#endif
inline handback(m) { st[m] = PEND; att[m] = (att[m] > 0 -> att[m] - 1 : 0) }
/* a row that an operator put back doesn't count for those that overtook it */
#define BEFORE(j) (UNF(j) && !excused[j])
inline pays(m) {
  assert(!HEAD || !(paid & BIT(KEY(m))) && (m == 3 || m == 0 || !BEFORE(0) && (m == 1 || !BEFORE(1))));
  paid = paid | BIT(KEY(m))
}
/* nobody waits any more for what is still on the wire */
inline hangup(w, s) {
  r = qi[FLIGHT(w,s)];
  if :: todo[r] != 0 -> det[r] = 1 :: else -> freereq(r) fi; r = 0;
  ph[FLIGHT(w,s)] = 0; cm[FLIGHT(w,s)] = 0; qi[FLIGHT(w,s)] = 0
}
inline settle(w, s) {
  r = qi[FLIGHT(w,s)]; i = 0; blk = 0; paid = 0;
  do
  :: i < N ->
    if
    :: (cm[FLIGHT(w,s)] & BIT(i)) && MINE(i, qf[r]) ->
      assert(!STALE || fence == qf[r]);
      if
      :: okm[r] & BIT(i) -> st[i] = PUB; lo[i] = 0
      :: else ->
        assert(!UNDONE || st[i] != PUB);
        if
        :: BEHIND(i) -> handback(i)
        :: else ->
          blk = blk | BIT(KEY(i));
          if
          :: pem[r] & BIT(i) -> st[i] = ABAN; excused[i] = 1
          :: !(pem[r] & BIT(i)) && (unm[r] & BIT(i)) -> handback(i); st[i] = FAIL
          :: else ->
            pays(i);
            if :: att[i] >= MAXATT -> st[i] = ABAN; excused[i] = 1 :: else -> st[i] = FAIL fi
          fi; lo[i] = 0
        fi
      fi
    :: else
    fi; i++
  :: else -> break
  od; i = 0; blk = 0; paid = 0;
  hangup(w, s)
}

/* --- workers ------------------------------------------------------------------ */
inline flight(w, s) {
  if
  :: claim(w, s)
  :: shangup(w, s)
  :: d_step { ph[FLIGHT(w,s)] == 2 && todo[qi[FLIGHT(w,s)]] == 0 -> settle(w, s) }
  /* timed out: unknown */
  :: d_step { ph[FLIGHT(w,s)] == 2 && todo[qi[FLIGHT(w,s)]] != 0 && budget > 0 -> budget--; fault = 1; settle(w, s) }
  fi
}
inline drop(w, s) {
  if :: ph[FLIGHT(w,s)] == 2 -> hangup(w, s) :: else -> ph[FLIGHT(w,s)] = 0; cm[FLIGHT(w,s)] = 0 fi
}
inline release(w, s) { /* claimed, never sent */
  i = 0;
  do
  :: i < N -> if :: (cm[FLIGHT(w,s)] & BIT(i)) && st[i] == PROC && rf[i] == myf[w] -> handback(i) :: else fi; i++
  :: else -> break
  od; i = 0; ph[FLIGHT(w,s)] = 0; cm[FLIGHT(w,s)] = 0
}
/* the claims of older fences end with the takeover */
inline sweep() {
#ifndef RETAKE
#ifndef NOSWEEP
  i = 0;
  do
  :: i < N ->
    if
    :: st[i] == PROC && rf[i] < fence ->
      handback(i); lo[i]++;
      if :: lo[i] >= MAXLOSS -> st[i] = ABAN; excused[i] = 1 :: else fi
    :: else
    fi; i++
  :: else -> break
  od;
#endif
#endif
  i = 0
}
inline worker(w) {
  if
  :: d_step { myf[w] == 0 && (owner == 0 || !live) && SOMEUNF ->
       owner = w+1; fence++; live = 1; myf[w] = fence;
       assert(!FENCE || myf[0] != myf[1]);
       sweep() }
  /* notices that it lost its lease; renews it late, when nobody came between */
  :: d_step { myf[w] != 0 && myf[w] != fence && ph[FLIGHT(w,0)] == 0 && ph[FLIGHT(w,1)] == 0 -> myf[w] = 0 }
  :: d_step { OWNS(w) && !live -> live = 1 }
  :: flight(w, 0)
#if SLOTS == 2
  :: flight(w, 1)
#endif
  /* kill -9; clean stop */
  :: d_step { myf[w] != 0 && budget > 0 -> budget--; fault = 1; drop(w, 0); drop(w, 1); myf[w] = 0 }
  :: d_step { OWNS(w) && ph[FLIGHT(w,0)] != 2 && ph[FLIGHT(w,1)] != 2 && budget > 0 -> budget--;
       release(w, 0); release(w, 1); owner = 0; live = 0; myf[w] = 0 }
  fi
}

/* --- everything --------------------------------------------------------------- */
#define DEAD(w) (owner == (w)+1 && myf[w] != fence)
inline row(m) {
  if
  :: d_step { st[m] == FAIL -> st[m] = PEND }
#ifdef ROWEXP
  :: d_step { st[m] == PROC && !rowexp[m] && budget > 0 -> budget--; rowexp[m] = 1 }
#endif
#ifdef OPER
  :: d_step { oper && st[m] == ABAN -> oper = 0; st[m] = PEND; att[m] = 0; lo[m] = 0 }
  :: d_step { oper && st[m] == ABAN -> oper = 0; st[m] = GONE; excused[m] = 1 }
#endif
  fi
}
#ifdef HOLD
#define HELD(m) (st[m] == ABAN)
#else
#define HELD(m) 0
#endif
#define SENT(m) (st[m] != PUB || del[m] > 0)

init {
  do
  :: worker(0)
  :: worker(1)
  :: broker(0)
  :: broker(1)
  :: broker(2)
  :: broker(3)
  :: row(0)
  :: row(1)
  :: row(2)
  :: row(3)
  /* the lease of a dead owner runs out; of a live one only as a fault */
  :: d_step { live && (DEAD(0) || DEAD(1)) && SOMEUNF -> live = 0 }
  :: d_step { live && owner != 0 && !DEAD(0) && !DEAD(1) && budget > 0 -> budget--; fault = 1; live = 0 }
  :: else -> break
  od;
  assert(!LOST || ALLROWS(SENT));
  assert(!STUCK || !UNF(0) && (!UNF(1) || HELD(0)) && (!UNF(2) || HELD(0) || HELD(1)) && !UNF(3))
}
