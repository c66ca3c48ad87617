/* When a consumer may forget a message: an outbox, a topic with two partitions, one
   consumer.

   An outbox says with every message: what was stored before `low` is settled, as of
   `at`. The mark of a partition passes when a message of it that says so is settled
   with all before it, and so is one whose promise was made when every call of the
   first one's time had ended. What is below the marks of all partitions with messages
   is forgotten.

   Modelled: rows, which stand for their time, row 0 stored by a transaction that may
   commit after the others; two publishers, each with one call; one of them loses its
   lease while row 0 is on its way, so that the other publishes it again; the promise, made
   in two steps, and out of date when it arrives; a consumer that settles what is in a
   partition in any order. The sender's clock goes by in periods: a call ends in the
   period after the one in which it began, at the latest.
   Abstracted: the age, which only adds to the rule; sessions; that the clocks of two
   databases differ, for which the code has a margin; a change of partitions.

   Asserted:
     TWICE    row 0 does not take effect twice
     REACHED  row 0 is never forgotten: false, or TWICE would say nothing

   Must hold: the default, but for REACHED. Must fail: see README.md. */
#ifndef COPIES
#define COPIES 4
#endif
#ifndef PERIODS
#define PERIODS 3
#endif
#define R 3
#define BIT(n) (1 << (n))
/* the properties; one that is 0 isn't asserted */
hidden byte TWICE = 1, REACHED = 0;

/* rows, by time: 0 none, 1 its transaction is open, 2 unfinished, 3 in hand, 4 settled */
byte row[R], part[R], nexts;
byte now = 1;                 /* the period */
/* calls: 0 none, 1 on its way, 2 the same without a lease; with the promise that it carries */
byte calling[2], what[2], since[2], says[2], sat[2];
byte low, at;                 /* the promise; at 0: none yet */
byte noted;                   /* the next one: up to there, with a transaction open or not */
bit running, noting;
/* what the topic partitions have, COPIES each, and how much of it is settled, as bits */
byte n[2], msg[6], mlow[6], mat[6], done;
bit effect, inbox;            /* of row 0 */
/* all before flr is settled; the mark, and the one that is next, since when */
byte flr[2], mark[2], nextlow[2], nextat[2];
hidden byte i, b, k;
#define AT(k, i) ((k) * COPIES + (i))

/* --- rows ----------------------------------------------------------------- */
inline store(m) {
  if
  :: d_step { nexts == m -> row[m] = 2; nexts++ }
  :: d_step { nexts == m -> row[m] = 2; nexts++; part[m] = 1 }
  fi
}

/* --- the promise ---------------------------------------------------------- */
inline promise(bound) {
  low = bound; i = 0;
  do :: i < R -> if :: (row[i] == 2 || row[i] == 3) && i < low -> low = i :: else fi; i++ :: else -> break od;
  i = 0; at = now
}
inline promises() {
  if
#ifdef NOOPEN
  :: d_step { at != now || low < nexts -> promise(nexts) }
#else
  :: d_step { !noting && (at != now || low < nexts) -> noting = 1; noted = nexts; running = (row[0] == 1) }
  /* the transactions of then have ended: all that was stored before is visible */
  :: d_step { noting && !(running && row[0] == 1) -> promise(noted); noting = 0; noted = 0; running = 0 }
#endif
  fi
}

/* --- calls ---------------------------------------------------------------- */
#define ROOM(m) (n[part[m]] < (part[m] -> 2 : COPIES))
inline begin(p, m) {
  d_step { calling[p] == 0 && row[m] == 2 -> row[m] = 3; calling[p] = 1; what[p] = m; since[p] = now; says[p] = low; sat[p] = at }
}
inline arrive(p) {
  k = part[what[p]]; msg[AT(k, n[k])] = what[p]; mlow[AT(k, n[k])] = says[p]; mat[AT(k, n[k])] = sat[p]; n[k]++; k = 0;
  calling[p] = 0; what[p] = 0; since[p] = 0; says[p] = 0; sat[p] = 0
}
inline ended(p) {
  d_step { calling[p] != 0 && ROOM(what[p]) -> if :: calling[p] == 1 -> row[what[p]] = 4 :: else fi; arrive(p) }
}
/* the lease ends in the middle of a call, which goes on */
inline zombie(p, m) {
  d_step { calling[p] == 0 && row[m] == 2 -> calling[p] = 2; what[p] = m; since[p] = now; says[p] = low; sat[p] = at }
}

/* --- time ----------------------------------------------------------------- */
#define OVER(p) (calling[p] == 0 || since[p] == now)
inline goesby() { d_step { now < PERIODS && OVER(0) && OVER(1) -> now++ } }
#ifdef NOWAIT
#define ENDED(a, b) 1
#else
#define ENDED(a, b) ((b) >= (a) + 2) /* at b, all calls of a's time */
#endif

/* --- the consumer --------------------------------------------------------- */
inline says_so(q, s) {
  if
  :: mat[AT(q, s)] == 0
  :: else ->
     if
     :: nextat[q] == 0 || ENDED(nextat[q], mat[AT(q, s)]) -> mark[q] = nextlow[q]; nextlow[q] = mlow[AT(q, s)]; nextat[q] = mat[AT(q, s)]
     :: else -> if :: mlow[AT(q, s)] < nextlow[q] -> nextlow[q] = mlow[AT(q, s)] :: else fi
     fi
  fi
}
inline settle(q, s) {
  d_step { s < n[q] && !(done & BIT(AT(q, s))) ->
    done = done | BIT(AT(q, s));
    if
    :: msg[AT(q, s)] == 0 && !inbox -> assert(!TWICE || !effect); effect = 1; inbox = 1
    :: else
    fi;
#ifdef NOFLOOR
    says_so(q, s)
#else
    do
    :: flr[q] < n[q] && (done & BIT(AT(q, flr[q]))) -> says_so(q, flr[q]); flr[q]++
    :: else -> break
    od; b = 0
#endif
  }
}
#ifdef ANYPART
#define PASSED (mark[0] > 0 || mark[1] > 0)
#else
#define OF(q) (n[q] == 0 || mark[q] > 0 && nextlow[q] > 0)
#define PASSED (OF(0) && OF(1))
#endif
inline forget() { d_step { inbox && PASSED -> inbox = 0; assert(!REACHED) } }

init {
end:
  do
  :: d_step { nexts == 0 -> row[0] = 1; nexts = 1 }
  :: d_step { row[0] == 1 -> row[0] = 2 }
  :: store(1)
  :: store(2)
  :: promises()
  :: zombie(0, 0)
  :: begin(1, 0)
  :: begin(1, 1)
  :: begin(1, 2)
  :: ended(0)
  :: ended(1)
  :: goesby()
  :: settle(0, 0)
  :: settle(0, 1)
  :: settle(0, 2)
  :: settle(0, 3)
  :: settle(1, 0)
  :: settle(1, 1)
  :: forget()
  od
}
