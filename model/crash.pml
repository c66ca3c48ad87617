/* Crashes: a poison row kills the process that hands it to the broker's client.

   Modelled: four rows of four keys, row 0 (with POISONS=2 row 1 too) is poison. One
   process with two workers that claim up to three rows each. KILLS losses come from
   outside, at any moment: the process is killed, or one worker's lease is lost. BACKS
   settles don't publish: the call returned and its rows failed, or they were never
   handed over and go back.
   Abstracted: time, order within keys, the broker. The quarantine turn may come
   whenever nothing is in flight, before or after other rows: that includes every rule
   about when it comes.

   The rule. losses counts a row's claims in a row that nobody settled. A row with
   losses >= 2 is in quarantine: it is claimed alone, when its process has nothing in
   flight, and nothing is claimed while it is out. It is abandoned when losses >=
   max(MAX, 5). Who published, failed or was abandoned by an answer has losses 0; who
   was handed back keeps them.

   Asserted:
     AGREE      losses >= max(MAX, 5) says the same as "losses >= MAX, and at least three
                of them alone"
     ALONE      nothing else is in flight while a row in quarantine is
     INNOCENT   a healthy row is abandoned only after three losses from outside while it
                was alone; so with KILLS <= 2 it never is
     FIVE       a poison row has max(MAX, 5) losses when it is abandoned: with no loss from
                outside, so many crashes exactly
     FOUND      when nothing more can happen, poison is abandoned and all others are
                published or abandoned as INNOCENT allows
   With STRICT, INNOCENT allows nothing.
   Switches that must fail: see README.md. */
#ifndef MAX
#define MAX 5
#endif
#ifndef KILLS
#define KILLS 2
#endif
#ifndef BACKS
#define BACKS 0
#endif
#ifndef POISONS
#define POISONS 1
#endif
#define N 4
#ifdef EARLY /* without "three of them alone" */
#define LIMIT MAX
#else
#define LIMIT (MAX > 5 -> MAX : 5)
#endif
#define BIT(m) (1 << (m))
#define POISON(m) ((m) < POISONS)

#define PEND 0
#define PROC 1
#define PUB 2
#define ABAN 3
/* the properties: true, so that SPIN names the one that breaks */
hidden byte AGREE = 1, FIVE = 1, INNOCENT = 1, ALONE = 1, FOUND = 1;

byte st[N];
byte att[N];     /* PLAIN: claims */
byte lo[N];      /* losses */
byte alone[N];   /* of them, those of claims of one row with nothing else in flight */
byte outside[N]; /* of these, those that came from outside */
byte own[N];     /* crashes of the row's own making, ever */
bit hit[N];      /* a poison row lost a claim without its own making */
byte cm[2];      /* claimed rows, by worker */
byte solo;       /* rows of quarantine that are out */
byte kills = KILLS, backs = BACKS;
hidden byte i, b, one;

#ifdef SOLO /* one loss, and the row is claimed alone; other workers go on */
#define QUARANTINE(m) (lo[m] >= 1)
#else
#ifdef PLAIN /* attempts are counted at the claim, and that is all */
#define QUARANTINE(m) 0
#else
#define QUARANTINE(m) (lo[m] >= 2)
#endif
#endif
#define BUSY (cm[0] != 0 || cm[1] != 0)
#define NORMAL(m) (st[m] == PEND && !QUARANTINE(m))
#define ILL(m) (st[m] == PEND && QUARANTINE(m))
#define ANY(p) (p(0) || p(1) || p(2) || p(3))
#if defined(SOLO) || defined(OTHERSGO)
#define ROOM 1
#define EMPTY 1
#else
#define ROOM (solo == 0)
#define EMPTY (!BUSY)
#endif

#ifdef PLAIN
#define ENDS(m) (att[m] >= MAX)
#else
#define ENDS(m) (lo[m] >= LIMIT)
#endif
#ifdef STRICT
#define ALLOWED(m) 0
#else
#define ALLOWED(m) (outside[m] >= 3)
#endif

/* a claim of worker w ends without a settle: `cause` is 1 + the row that killed the process, 0 if it came from outside */
inline lost(w, cause) {
  i = 0;
  do
  :: i < N ->
    if
    :: cm[w] & BIT(i) ->
      lo[i]++;
      if :: solo & BIT(i) -> alone[i]++; if :: cause == 0 -> outside[i]++ :: else fi :: else fi;
      if :: cause == i+1 -> own[i]++ :: else -> hit[i] = 1 fi;
#if !defined(SOLO) && !defined(PLAIN) && !defined(EARLY)
      assert(AGREE && (lo[i] >= LIMIT) == (lo[i] >= MAX && alone[i] >= 3));
#endif
      if
      :: ENDS(i) ->
        st[i] = ABAN;
        if
        :: POISON(i) -> assert(FIVE && (lo[i] == LIMIT && (hit[i] || own[i] == LIMIT)))
        :: else -> assert(INNOCENT && ALLOWED(i))
        fi; own[i] = 0; hit[i] = 0
      :: else -> st[i] = PEND
      fi;
      solo = solo & ~BIT(i)
    :: else
    fi; i++
  :: else -> break
  od; i = 0; cm[w] = 0
}
inline take(m, w) { st[m] = PROC; cm[w] = cm[w] | BIT(m); b++;
#ifdef PLAIN
  att[m]++
#endif
}
inline settled(m) { lo[m] = 0; alone[m] = 0; outside[m] = 0 }
inline each(w, result, forgives) {
  i = 0;
  do
  :: i < N ->
    if :: cm[w] & BIT(i) -> st[i] = result; solo = solo & ~BIT(i); if :: forgives -> settled(i) :: else fi :: else fi; i++
  :: else -> break
  od; i = 0; cm[w] = 0
}
#ifdef BACKFORGIVES
#define FORGIVES 1
#else
#define FORGIVES 0
#endif
#define HASPOISON(w) ((cm[w] & 1) || POISONS == 2 && (cm[w] & 2))
/* the poison that a call comes to first */
#define KILLER(w) ((cm[w] & 1) -> 1 : 2)

inline worker(w) {
  if
  :: d_step { cm[w] == 0 && ROOM && ANY(NORMAL) ->
       i = 0; b = 0;
       do :: i < N -> if :: NORMAL(i) && b < 3 -> take(i, w) :: else fi; i++ :: else -> break od; i = 0; b = 0 }
  /* the quarantine turn: the oldest of its rows */
  :: d_step { cm[w] == 0 && ROOM && EMPTY && ANY(ILL) ->
       i = 0; b = 0;
       do :: i < N -> if :: ILL(i) && b < 1 -> take(i, w); solo = solo | BIT(i) :: else fi; i++ :: else -> break od; i = 0; b = 0 }
  :: d_step { HASPOISON(w) -> one = KILLER(w); lost(0, one); lost(1, one); one = 0 }
  :: d_step { cm[w] != 0 && !HASPOISON(w) -> each(w, PUB, 1) }
  /* a failure that a settle wrote: the call returned, so nobody in it kills */
  :: d_step { cm[w] != 0 && !HASPOISON(w) && backs > 0 -> backs--; each(w, PEND, 1) }
  /* never handed over: nothing is known about it */
  :: d_step { cm[w] != 0 && backs > 0 -> backs--; each(w, PEND, FORGIVES) }
  /* one worker's lease is lost */
  :: d_step { cm[w] != 0 && kills > 0 -> kills--; lost(w, 0) }
  fi
}
#define RIGHT(m) (POISON(m) -> st[m] == ABAN : (st[m] == PUB || st[m] == ABAN && ALLOWED(m)))
init {
  do
  :: worker(0)
  :: worker(1)
  :: d_step { BUSY && kills > 0 -> kills--; lost(0, 0); lost(1, 0) }
#if !defined(SOLO) && !defined(OTHERSGO) /* there, let the consequence be seen */
  :: d_step { solo != 0 && cm[0] != 0 && cm[1] != 0 -> assert(ALONE && false) }
#endif
  :: else -> break
  od;
  assert(FOUND && RIGHT(0) && RIGHT(1) && RIGHT(2) && RIGHT(3))
}
