/* Exactly once into Kafka: not built yet; what it needs of the tables is.

   A partition has a transactional id. One Kafka transaction holds the records of one
   claim and a committed offset, the marker, whose value is the claim's id. Who takes the
   partition over calls InitProducerId (it fences older producers and aborts what they
   left open), reads the marker, settles by it, and only then ends the older claims.

   Modelled: one partition, one row, two owners; kills and leases lost under a live owner,
   three in all, at any step.
   Abstracted: time; Kafka's transactions are atomic; a claim is one row.

   Asserted:
     ONCE  no second committed copy of the record
     SENT  when nothing more can happen, there is one

   Switches that must fail: see README.md. */
/* the properties: true, so that SPIN names the one that breaks */
hidden byte ONCE = 1, SENT = 1;

byte copies;                 /* committed copies of the record */
byte marker, epoch;
bit open; byte opc, ope;     /* the open transaction, its claim and epoch */
byte rowst, rowc;            /* 0 pending, 1 processing, 2 published; claim id */
byte owner = 2, fence;       /* 2: nobody */
bit live;
byte nextclaim = 1, budget = 3;
/* an owner: 0 idle, 1 took over, 2 fenced older producers, 3 read the marker,
   4 ended older claims, 5 claimed, 6 sent, 7 committed */
byte pc[2], myf[2], myepoch[2], mark[2], claim[2];

inline init_producer(n) { epoch++; myepoch[n] = epoch; open = 0; opc = 0; ope = 0 }
inline leave(n) {
  pc[n] = 0; myf[n] = 0;
  if :: owner == n && live -> owner = 2; live = 0 :: else fi
}
inline worker(n) {
  if
  :: d_step { pc[n] == 0 && rowst != 2 && (owner == 2 || !live) -> owner = n; live = 1; fence++; myf[n] = fence; pc[n] = 1 }
#ifdef MARKERFIRST
  :: d_step { pc[n] == 1 -> mark[n] = marker; pc[n] = 2 }
  :: d_step { pc[n] == 2 -> init_producer(n); pc[n] = 3 }
#else
#ifdef NOINIT
  :: d_step { pc[n] == 1 -> myepoch[n] = epoch; pc[n] = 2 }
#else
  :: d_step { pc[n] == 1 -> init_producer(n); pc[n] = 2 }
#endif
  :: d_step { pc[n] == 2 -> mark[n] = marker; pc[n] = 3 }
#endif
  :: d_step { pc[n] == 3 && fence == myf[n] ->
#ifdef NOMARKER
       if :: rowst == 1 -> rowst = 0; rowc = 0 :: else fi;
#else
       if
       :: rowst == 1 && rowc <= mark[n] -> rowst = 2
       :: rowst == 1 && rowc > mark[n] -> rowst = 0; rowc = 0
       :: else
       fi;
#endif
       pc[n] = 4 }
  :: d_step { pc[n] == 3 && fence != myf[n] -> pc[n] = 0 }
  :: d_step { pc[n] == 4 && fence == myf[n] && rowst == 0 -> rowst = 1; rowc = nextclaim; claim[n] = nextclaim; nextclaim++; pc[n] = 5 }
  :: d_step { pc[n] == 4 && (fence != myf[n] || rowst == 2) -> pc[n] = 0; myf[n] = 0; if :: owner == n && rowst == 2 -> owner = 2 :: else fi }
  /* begin, send the record, send the offset: refused when fenced */
  :: d_step { pc[n] == 5 && myepoch[n] == epoch && (!open || ope == epoch) -> open = 1; ope = epoch; opc = claim[n]; pc[n] = 6 }
  :: d_step { pc[n] == 5 && myepoch[n] != epoch -> leave(n) }
#define COMMITS(n) (open && ope == myepoch[n] && opc == claim[n] && myepoch[n] == epoch)
  :: d_step { pc[n] == 6 && COMMITS(n) -> open = 0; opc = 0; ope = 0; copies++; marker = claim[n]; pc[n] = 7;
       assert(ONCE && copies <= 1) }
  :: d_step { pc[n] == 6 && !COMMITS(n) -> leave(n) }
  :: d_step { pc[n] == 7 -> if :: rowst == 1 && rowc == claim[n] -> rowst = 2 :: else fi; pc[n] = 0; if :: owner == n && fence == myf[n] -> owner = 2; live = 0 :: else fi }
  /* kill -9; the lease is lost */
  :: d_step { pc[n] != 0 && budget > 0 -> budget--; pc[n] = 0; myf[n] = 0; if :: owner == n -> live = 0 :: else fi }
  :: d_step { live && owner == n && pc[n] != 0 && budget > 0 -> budget--; live = 0 }
  fi
}
init {
  do
  :: worker(0)
  :: worker(1)
  :: rowst == 2 && pc[0] == 0 && pc[1] == 0 -> break
  od;
  assert(SENT && copies == 1)
}
