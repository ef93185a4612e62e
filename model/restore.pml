/*
 * A snapshot that is restored while sessions live, for the model checker Spin: N mutexes of one name, the first OWN of them of
 * one session, each other one of a session of its own. Etcd goes back to an earlier revision, and what sessions
 * keep in memory does not. See lock.pml for the rest of the protocol, and doc.go for what a restore may break: who
 * holds by an entry that the snapshot does not have is told late. Two whose entries are in etcd never hold together.
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef N
#define N 3 /* acquisitions, at most 4 */
#endif
#ifndef OWN
#define OWN 2 /* 2 or 3: that many are of the first session */
#endif
#ifndef WRITES
#define WRITES 1 /* by anybody, to other keys */
#endif
#ifndef BUMP
#define BUMP 0 /* by how much the restore raises the revision */
#endif
#ifdef SHORTEST
#define scratch
#else
#define scratch hidden /* not part of the state, which a breadth-first search does not allow */
#endif
#define ok(m) (MUTANT != m) /* the line is there: mutant m is without it */
#define ses(i) ((i) < OWN -> 0 : (i) - OWN + 1)
#define S (N - OWN + 1)
#define name(i) (65 + (i)) /* A, B, ... */

/* Etcd: the create revision of each acquisition's entry, 0 if it has none; and the same in the snapshot. */
byte c[N], rev = 1, saved[N], savedRev, writes = WRITES;

#define RESTORED 100 /* savedRev: it was done */

/* A session: the highest revision that a reply has shown it, and the queue as it read it last: at which revision, and which entries. */
byte seen[S], at[S], view[S * N];
bool ended[S];

#define ENQUEUED 1
#define WAITING 2
#define HELD 3
#define OVER 4
#define LOST 5
byte state[N], me[N]; /* me: the revision that it knows its entry by */
/* The enqueue of each: what the session had seen when it was sent, and the reply: the revision and the queue. */
byte asked[N], reply[N], shown[N * N];
bool puts[N], deletes[N];
scratch byte j, a;

#define maxOf(v, w) ((v) > (w) -> (v) : (w))
#define inEtcd(i) (c[i] && c[i] == me[i])
#define passes(j, i) (ses(j) == ses(i) && state[j] == OVER) /* the hand-over inside a session */
/* An entry is below that of i, as its session has read the queue, or knows of its own. */
#define below(i, j) (j < N && (j) != (i) && !passes(j, i) && ((view[ses(i) * N + (j)] && view[ses(i) * N + (j)] < me[i]) || \
	(ses(j) == ses(i) && me[j] && me[j] < me[i] && (state[j] == WAITING || state[j] == HELD))))
#define anyBelow(i) (below(i, 0) || below(i, 1) || below(i, 2) || below(i, 3))

#define differs1(i, j) (j < N && view[ses(i) * N + (j)] != c[j])
#define differs(i) (differs1(i, 0) || differs1(i, 1) || differs1(i, 2) || differs1(i, 3))
inline look(s, q) { at[s] = q; for (j : 0 .. N - 1) { view[(s) * N + j] = c[j] } }

inline grant(i) {
	printf("%c: granted, by the queue at revision %d\n", name(i), at[ses(i)]);
	for (j : 0 .. N - 1) {
		assert(j == i || state[j] != HELD || ended[ses(j)] || !inEtcd(j) || !inEtcd(i)) /* exclusion: nobody else has the lock, whose entry is in etcd */
	}
	state[i] = HELD
}

proctype acquisition(byte i) {
end0:	atomic { !ended[ses(i)] -> state[i] = ENQUEUED; puts[i] = true; asked[i] = seen[ses(i)]; printf("%c: asks for the lock, having seen revision %d\n", name(i), seen[ses(i)]) }
	do
	:: atomic { reply[i] ->
		me[i] = reply[i]; printf("%c: is in the queue, at revision %d\n", name(i), me[i]);
		/* A write comes behind all that was seen before it was sent: etcd has gone back. */
		if
		:: (ok(32) -> reply[i] <= asked[i] : reply[i] < asked[i]) && ok(31) -> ended[ses(i)] = true; printf("%c: its session ends\n", name(i))
		:: else ->
			if /* A listing that is older than what was read last tells nothing new. */
			:: reply[i] > at[ses(i)] -> at[ses(i)] = reply[i]; for (j : 0 .. N - 1) { view[ses(i) * N + j] = shown[i * N + j] }
			:: else
			fi
		fi;
		seen[ses(i)] = maxOf(seen[ses(i)], reply[i]);
		reply[i] = 0; for (j : 0 .. N - 1) { shown[i * N + j] = 0 };
		state[i] = WAITING; break }
	:: atomic { ended[ses(i)] -> goto lost }
	od;
	do
	/* Read the queue, linearizably. */
	:: atomic { !ended[ses(i)] && (rev != at[ses(i)] || differs(i)) ->
		if
		:: rev < seen[ses(i)] && ok(31) -> ended[ses(i)] = true; printf("%c: reads revision %d, and its session ends\n", name(i), rev)
		:: else -> seen[ses(i)] = maxOf(seen[ses(i)], rev);
			if :: rev >= at[ses(i)] -> look(ses(i), rev); printf("%c: reads the queue at revision %d\n", name(i), rev) :: else fi;
			if :: rev >= me[i] && !inEtcd(i) -> goto lost :: else fi
		fi }
	:: atomic { !ended[ses(i)] && at[ses(i)] >= me[i] && !anyBelow(i) -> grant(i); break }
	:: atomic { ended[ses(i)] || (savedRev == RESTORED && !inEtcd(i)) -> goto lost }
	od;
end1:	do
	:: atomic { !ended[ses(i)] -> state[i] = OVER; deletes[i] = true; printf("%c: gives the lock back\n", name(i)); goto end }
	:: atomic { ended[ses(i)] || (savedRev == RESTORED && !inEtcd(i)) -> goto lost } /* it is told so, early or late */
	od;
lost:	atomic { printf("%c: has lost it\n", name(i)); state[i] = LOST; me[i] = 0 }
end:	skip
}

proctype net(byte i) {
end:	do
	:: atomic { puts[i] -> puts[i] = false; rev++; c[i] = rev; reply[i] = rev; printf("etcd: at %d the entry of %c is written\n", rev, name(i));
		for (j : 0 .. N - 1) { shown[i * N + j] = c[j] } }
	:: atomic { deletes[i] -> deletes[i] = false;
		if :: inEtcd(i) -> rev++; c[i] = 0; printf("etcd: at %d the entry of %c is deleted\n", rev, name(i)) :: else fi;
		if :: rev < seen[ses(i)] && ok(31) -> ended[ses(i)] = true :: else -> seen[ses(i)] = maxOf(seen[ses(i)], rev) fi }
	/* With its lease, or when the session sweeps that for keys that no acquisition uses. */
	:: atomic { c[i] && !puts[i] && !deletes[i] && (ended[ses(i)] || state[i] == OVER || state[i] == LOST) ->
		rev++; c[i] = 0; printf("etcd: at %d what is left of %c is removed\n", rev, name(i)) }
	od
}

proctype somebody() {
end:	do
	:: atomic { writes -> writes--; rev++; printf("somebody: at %d writes elsewhere\n", rev) }
	:: atomic { !savedRev -> savedRev = rev; for (j : 0 .. N - 1) { saved[j] = c[j] } printf("somebody: saves a snapshot at %d\n", rev) }
	/* All connections break: what was not answered is sent again. */
	:: atomic { savedRev && savedRev < RESTORED -> rev = savedRev + BUMP; savedRev = RESTORED; printf("somebody: restores the snapshot; etcd is at %d\n", rev);
		for (j : 0 .. N - 1) {
			c[j] = saved[j]; saved[j] = 0;
			if :: state[j] == ENQUEUED -> puts[j] = true; reply[j] = 0; asked[j] = seen[ses(j)]; for (a : 0 .. N - 1) { shown[j * N + a] = 0 } :: else fi
		} }
	od
}

proctype rest() {
	timeout -> atomic { /* nothing more can happen */
		for (j : 0 .. N - 1) { assert(!state[j] || state[j] > HELD) } /* served: whoever waited has had the lock, or has lost its place */
	}
}

init {
	atomic {
		for (a : 0 .. N - 1) { run acquisition(a); run net(a) }
		run somebody(); run rest()
	}
}
