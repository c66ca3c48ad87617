/* Exactly once on a store that offers no more than compare-and-set of one document.

   An entity is a document: what has changed it, and what is to be sent because of
   messages in hand. The ids of processed messages are in a store of their own. A worker
   loads the document, asks for the id, applies the message and saves the document if
   nobody has changed it, sends, adds the id, takes what it sent out of the document.

   Modelled: two workers, two messages of one entity, COPIES of each, delivered in any
   order; a worker that dies between any two steps, CRASHES times, and whose message is
   delivered again; attempts that differ in what they would send.
   Abstracted: several outgoing messages of one message; a write that takes effect after
   its writer was told of an error, which is a crash behind the write for all but the writer;
   several entities, which share nothing but ids.

   Asserted:
     ONCE   a message changes the entity once
     LOST   a change that was saved stays
     BODY   all copies of what is sent are the same, and belong to the change that was saved
     KNOWN  who has changed the entity is known to it, or among the processed
     SENT   for a processed message, what it led to was sent
     LEFT   when all is acknowledged, everything has happened and nothing is left to send
   That it ends follows: no deadlock, and each step takes an attempt, a copy or a crash.

   Must hold: the default. Must fail: see README.md. */
#ifndef COPIES
#define COPIES 2
#endif
#ifndef CRASHES
#define CRASHES 2
#endif
/* the properties; one that is 0 isn't asserted */
hidden byte ONCE = 1, LOST = 1, BODY = 1, KNOWN = 1, SENT = 1, LEFT = 1;

/* the document: its version; by message: whether it has changed it, and the attempt
   whose outgoing message is to be sent, 0 none */
byte version, changed[2], out[2];
bit processed[2], replica[2];  /* replica: what one that lags behind has */
byte queue[2], crashes;
byte tries[2];                 /* attempts so far */
byte sent[2];                  /* the attempt that was sent */
byte effect[2];                /* the attempt that was saved, ever */
/* workers: 0 idle, 1 has a copy, 2 loaded, 3 told no, 4 to send, 5 sent, 6 to remove,
   7 to remove without having added it */
byte pc[2], what[2], loaded[2], hchanged[4], hout[4];
bit asked[2], no[4];           /* told no before it has loaded; told no, ever, and not dead since */
#define AT(p, m) (2 * (p) + (m))

inline check() {
  assert(!KNOWN || ((!effect[0] || out[0] || processed[0]) && (!effect[1] || out[1] || processed[1])));
  assert(!SENT || ((!processed[0] || sent[0]) && (!processed[1] || sent[1])));
  assert(!LOST || ((!effect[0] || changed[0]) && (!effect[1] || changed[1])))
}
inline idle(p) {
  pc[p] = 0; what[p] = 0; loaded[p] = 0; asked[p] = 0;
  hchanged[AT(p, 0)] = 0; hchanged[AT(p, 1)] = 0; hout[AT(p, 0)] = 0; hout[AT(p, 1)] = 0
}
inline again(p) { queue[what[p]]++; idle(p) }

inline deliver(p, m) { d_step { pc[p] == 0 && queue[m] > 0 -> queue[m]--; what[p] = m; pc[p] = 1 } }
inline die(p) {
  d_step { pc[p] != 0 && crashes < CRASHES -> crashes++; again(p); no[AT(p, 0)] = 0; no[AT(p, 1)] = 0 }
}

inline load(p) {
  loaded[p] = version;
  hchanged[AT(p, 0)] = changed[0]; hchanged[AT(p, 1)] = changed[1]; hout[AT(p, 0)] = out[0]; hout[AT(p, 1)] = out[1]
}
/* what the store of ids says */
#ifdef STALE
#define KNOWS(p) replica[what[p]]
#elif defined(CACHEDNO)
#define KNOWS(p) (processed[what[p]] && !no[AT(p, what[p])])
#else
#define KNOWS(p) processed[what[p]]
#endif
inline say(p) {
  if
#ifdef DUPSTAYS
  :: KNOWS(p) -> idle(p)
#else
  :: KNOWS(p) && hout[AT(p, what[p])] -> pc[p] = 6
  :: KNOWS(p) && !hout[AT(p, what[p])] -> idle(p)
#endif
  :: else ->
#ifdef CACHEDNO
     no[AT(p, what[p])] = 1;
#endif
#ifdef NOREUSE
     pc[p] = 3
#else
     if :: hout[AT(p, what[p])] -> pc[p] = 4 :: else -> pc[p] = 3 fi
#endif
  fi
}
inline ask(p) {
  if
#ifdef CHECKFIRST
  :: d_step { pc[p] == 1 && !asked[p] -> if :: KNOWS(p) -> idle(p) :: else -> asked[p] = 1 fi }
  :: d_step { pc[p] == 1 && asked[p] -> load(p); asked[p] = 0; if :: hout[AT(p, what[p])] -> pc[p] = 4 :: else -> pc[p] = 3 fi }
#else
  :: d_step { pc[p] == 1 -> load(p); pc[p] = 2 }
  :: d_step { pc[p] == 2 -> say(p) }
#endif
  fi
}

#ifdef NOCAS
#define FRESH(p) 1
#else
#define FRESH(p) (version == loaded[p])
#endif
inline save(p) {
  version++; loaded[p] = version;
  changed[0] = hchanged[AT(p, 0)]; changed[1] = hchanged[AT(p, 1)]; out[0] = hout[AT(p, 0)]; out[1] = hout[AT(p, 1)]
}
inline apply(p) {
  d_step { pc[p] == 3 ->
    tries[what[p]]++;
    if
    :: FRESH(p) ->
       assert(!ONCE || !effect[what[p]]);
       effect[what[p]] = tries[what[p]];
       hchanged[AT(p, what[p])] = 1; hout[AT(p, what[p])] = tries[what[p]];
       save(p); check(); pc[p] = 4
    :: else -> again(p)
    fi
  }
}
inline transmit(p) {
#ifdef REDRAW /* what is sent is made anew, not taken from the document */
  tries[what[p]]++; hout[AT(p, what[p])] = tries[what[p]];
#endif
  assert(!BODY || ((sent[what[p]] == 0 || sent[what[p]] == hout[AT(p, what[p])]) && hout[AT(p, what[p])] == effect[what[p]]));
  sent[what[p]] = hout[AT(p, what[p])]
}
inline remove(p, next) {
  if
  :: FRESH(p) -> hout[AT(p, what[p])] = 0; save(p); check(); if :: next == 0 -> idle(p) :: else -> pc[p] = next fi
  :: else -> again(p)
  fi
}
inline finish(p) {
  if
#ifdef SENDLAST
  :: d_step { pc[p] == 4 -> pc[p] = 5 }
  :: d_step { pc[p] == 5 -> processed[what[p]] = 1; check(); transmit(p); pc[p] = 6 }
#else
  :: d_step { pc[p] == 4 -> transmit(p); pc[p] = 5 }
#ifdef REMOVEFIRST
  :: d_step { pc[p] == 5 -> remove(p, 7) }
  :: d_step { pc[p] == 7 -> processed[what[p]] = 1; idle(p) }
#else
  :: d_step { pc[p] == 5 -> processed[what[p]] = 1; check(); pc[p] = 6 }
#endif
#endif
  :: d_step { pc[p] == 6 -> remove(p, 0) }
  fi
}

init {
  queue[0] = COPIES; queue[1] = COPIES;
  do
  :: deliver(0, 0)
  :: deliver(0, 1)
  :: deliver(1, 0)
  :: deliver(1, 1)
  :: ask(0)
  :: ask(1)
  :: apply(0)
  :: apply(1)
  :: finish(0)
  :: finish(1)
  :: die(0)
  :: die(1)
#ifdef STALE
  :: d_step { replica[0] != processed[0] -> replica[0] = processed[0] }
  :: d_step { replica[1] != processed[1] -> replica[1] = processed[1] }
#endif
  :: pc[0] == 0 && pc[1] == 0 && queue[0] == 0 && queue[1] == 0 ->
     assert(!LEFT || (effect[0] && effect[1] && sent[0] && sent[1] && processed[0] && processed[1] && !out[0] && !out[1]));
     break
  od
}
