/* The bounds of a search, which is told its own with -D: see searches.go. */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef N
#define N 3 /* acquisitions */
#endif
#ifndef PAIR
#define PAIR 0 /* 1: the first two are of one session; else each has its own */
#endif
#ifndef KINDS
#define KINDS 1111 /* a digit for each acquisition, the first at the right: 1 mutex, 2 reader, 4 writer, or a sum: any of these */
#endif
#ifndef TRIES
#define TRIES 0 /* a bit for each acquisition that may be a Try */
#endif
#ifndef FAULTS
#define FAULTS 0 /* requests and replies lost, requests sent twice, watches that fall silent: so many in all */
#endif
#ifndef CANCELS
#define CANCELS 0 /* ctxs that end */
#endif
#ifndef OTHERS
#define OTHERS 0 /* entries removed, and leases revoked, by somebody else */
#endif
#ifndef USES
#define USES 0 /* guarded transactions */
#endif
#ifndef STAYS
#define STAYS 0 /* 1: who has downgraded keeps the lock until no reader waits */
#endif
#ifndef TICKS
#define TICKS 0 /* of the clock while session 0 lives, whose lease is granted for TTL of them */
#endif
#ifndef LATE
#define LATE 0 /* requests that are carried out when nobody looks for them any more */
#endif
#ifndef LIVE
#define LIVE 0 /* 1: with the formulas at the end, and watches fall silent without end */
#endif
