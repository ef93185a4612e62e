/*
 * Several locks at once: N acquisitions, each of some of M names, for the model checker Spin. Lost replies,
 * leases, fences and late writes are as for one name: see lock.pml. This shows that an acquisition has all of
 * its locks at one revision, and that nobody waits in a circle, whatever names overlap.
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef N
#define N 3 /* acquisitions, at most 3 */
#endif
#ifndef M
#define M 2 /* names, at most 3 */
#endif
#ifndef PAIR
#define PAIR 0 /* 1: the first two are of one session */
#endif
#ifndef OTHERS
#define OTHERS 0 /* parts that somebody else removes */
#endif
#ifndef CANCELS
#define CANCELS 0 /* ctxs that end */
#endif
#ifdef SHORTEST
#define scratch
#else
#define scratch hidden /* not part of the state, which a breadth-first search does not allow */
#endif
#define ok(m) (MUTANT != m) /* the line is there: mutant m is without it */
#define ses(i) ((PAIR && (i) < 2) -> 0 : (i))
#define name(i) (65 + (i)) /* A, B, ... */
#define part(i, n) ((i) * M + (n))
#define maxOf(v, w) ((v) > (w) -> (v) : (w))

/* An acquisition. RELEASED and ABANDONED are being removed, OVER is removed. LOST: by somebody else. */
#define ENQUEUED 1
#define HELD 2
#define RELEASED 3
#define ABANDONED 4
#define LOST 5
#define OVER 6
byte state[N];
bool behind[N];   /* something was before it when its txn was carried out */
bool removing[N]; /* the request that deletes all that is left of it is on its way */
bool hit[N], had[N]; /* for assertions: somebody else removed a part of it; it had the locks */

/* Its parts, one for each name that it wants. */
#define WRITE 1
#define READ 2
byte want[N * M]; /* 0, WRITE or READ */
byte c[N * M];    /* create revision, 0: not written yet. One txn writes all, at one revision */
byte went[N * M]; /* the revision at which it was removed, 0: it is there */
bool got[N * M];  /* it has the lock of its name, as its waitlist knows */
byte rev = 1, others = OTHERS, cancels = CANCELS;
scratch byte j, n, p, q, a;

#define there(p) (c[p] && !went[p])
#define wasThere(p, q) (c[p] && c[p] <= (q) && (!went[p] || went[p] > (q)))
#define conflict(j, i, n) ((j) != (i) && want[part(j, n)] && want[part(i, n)] && (want[part(j, n)] == WRITE || want[part(i, n)] == WRITE))
#define below(j, i, n) (conflict(j, i, n) && c[part(j, n)] && c[part(j, n)] < c[part(i, n)])

/* An entry that was released lets the next one of its session in before etcd has removed it. One that was
 * given up while it waited for some of its locks does not: see docs/protocol.md. */
#define passes(j, i) (ses(j) == ses(i) && state[j] == RELEASED)
#define blocked1(j, i, n) (below(j, i, n) && there(part(j, n)) && !passes(j, i))
#define blocked(i, n) (blocked1(0, i, n) || blocked1(1, i, n) || blocked1(N - 1, i, n))
#define went1(j, i, n) (below(j, i, n) -> went[part(j, n)] : 0)
#define free(i, n) maxOf(c[part(i, n)], maxOf(went1(0, i, n), maxOf(went1(1, i, n), went1(N - 1, i, n)))) /* since when nothing is below that is not passed over */
#define waits(i, n) (want[part(i, n)] && !got[part(i, n)])
#define gone(i, n) (c[part(i, n)] && went[part(i, n)])
#define anyWaits(i) (waits(i, 0) || waits(i, 1) || waits(i, M - 1))
#define anyGone(i) (gone(i, 0) || gone(i, 1) || gone(i, M - 1))

inline grant(i, at) {
	printf("%c: has all of its locks\n", name(i));
	for (n : 0 .. M - 1) {
		if
		:: want[part(i, n)] ->
			assert(wasThere(part(i, n), at)); /* I1: all of it was in the queues at one revision */
			for (j : 0 .. N - 1) {
				assert(!below(j, i, n) || (went[part(j, n)] && went[part(j, n)] <= at) || passes(j, i) || (had[j] && state[j] == OVER && ses(j) == ses(i))); /* I1, I2: at which nothing that blocks it was below */
				assert(state[j] != HELD || hit[i] || hit[j] || !conflict(j, i, n)) /* exclusion: nobody else believes to have what this one excludes */
			}
		:: else
		fi
	}
	state[i] = HELD; had[i] = true
}

/* The list of the session grants a part by itself, at a revision at which that was in its queue. */
#define granted(i, n) (waits(i, n) && c[part(i, n)] && !blocked(i, n) && (!went[part(i, n)] || went[part(i, n)] > free(i, n)))
inline grantPart(i, n) { q = free(i, n); got[part(i, n)] = true; printf("%c: has its part %d, at revision %d\n", name(i), n, q) }

/* Only mutant 25 writes one part after the other, in any order. */
#define mayWrite(i, n) (want[part(i, n)] && !c[part(i, n)] && (!c[part(i, M - 1 - (n))] || got[part(i, M - 1 - (n))]))

proctype acquisition(byte i) {
	atomic {
		state[i] = ENQUEUED;
		if
		:: ok(25) -> /* One txn writes a key for each name, and lists what is before it. */
			rev++; printf("etcd: at %d the parts of %c are written\n", rev, name(i));
			for (n : 0 .. M - 1) { if :: want[part(i, n)] -> c[part(i, n)] = rev :: else fi }
			for (p : 0 .. M - 1) {
				if
				:: want[part(i, p)] ->
					for (j : 0 .. N - 1) { if :: below(j, i, p) && there(part(j, p)) -> behind[i] = true :: else fi }
					if :: !blocked(i, p) -> got[part(i, p)] = true :: else fi
				:: else
				fi
			}
		:: else -> behind[i] = true
		fi
	}
	do
	:: atomic { !ok(25) && mayWrite(i, 0) -> rev++; c[part(i, 0)] = rev; printf("etcd: at %d part 0 of %c is written\n", rev, name(i)) }
	:: atomic { !ok(25) && mayWrite(i, M - 1) -> rev++; c[part(i, M - 1)] = rev; printf("etcd: at %d part %d of %c is written\n", rev, M - 1, name(i)) }
	:: atomic { granted(i, 0) -> grantPart(i, 0) }
	:: atomic { granted(i, 1) -> grantPart(i, 1) }
	:: atomic { granted(i, M - 1) -> grantPart(i, M - 1) }
	:: atomic { !behind[i] -> grant(i, c[part(i, (want[part(i, 0)] -> 0 : (want[part(i, 1)] -> 1 : M - 1)))]); break }
	:: atomic { behind[i] && !anyWaits(i) ->
		/* One read at the present: what it had first may have been removed while it waited for the rest. */
		if
		:: ok(26) && anyGone(i) -> goto lost
		:: ok(26) && !anyGone(i) -> grant(i, rev)
		:: else -> a = 0; for (p : 0 .. M - 1) { if :: want[part(i, p)] && free(i, p) > a -> a = free(i, p) :: else fi }; grant(i, a)
		fi;
		break }
	:: atomic { anyGone(i) -> goto lost }
	:: atomic { cancels -> cancels--; state[i] = ABANDONED; removing[i] = true; printf("%c: its ctx ends\n", name(i)); goto end }
	od;
	if
	:: atomic { anyGone(i) -> goto lost }
	:: atomic { state[i] = RELEASED; removing[i] = true; printf("%c: gives its locks back\n", name(i)); goto end }
	fi;
lost:	atomic { /* what is left of it is removed */
		state[i] = LOST; removing[i] = ok(27); printf("%c: has lost a part\n", name(i))
	}
end:	skip
}

inline carryOutDelete(i) {
	removing[i] = false; rev++; printf("etcd: at %d the parts of %c are deleted\n", rev, name(i));
	for (n : 0 .. M - 1) { if :: there(part(i, n)) -> went[part(i, n)] = rev :: else fi }
	if :: state[i] != LOST -> state[i] = OVER :: else fi
}

proctype net() {
end:	do
	:: atomic { removing[0] -> carryOutDelete(0) }
	:: atomic { removing[1] -> carryOutDelete(1) }
	:: atomic { removing[N - 1] -> carryOutDelete(N - 1) }
	:: atomic { others -> others--; p = 0; do :: p < N * M - 1 -> p++ :: break od;
		if :: there(p) -> rev++; went[p] = rev; hit[p / M] = true; printf("somebody: at %d removes part %d of %c\n", rev, p % M, name(p / M)) :: else fi }
	od
}

proctype rest() {
	timeout -> atomic { /* nothing more can happen */
		for (j : 0 .. N - 1) { assert(state[j] > HELD) } /* served: nobody waits in a circle */
		for (p : 0 .. N * M - 1) { assert(!there(p)) } /* cleared: nothing is left */
	}
}

init {
	atomic {
		for (p : 0 .. N * M - 1) { if :: want[p] = WRITE :: want[p] = READ :: want[p] = 0 fi }
		for (j : 0 .. N - 1) {
			if :: want[part(j, 0)] || want[part(j, 1)] || want[part(j, M - 1)] :: else -> want[part(j, 0)] = WRITE fi;
			run acquisition(j)
		}
		run net(); run rest()
	}
}
