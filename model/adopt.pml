/*
 * A lease that goes from one process to the next, for the model checker Spin: A has a lock and calls Orphan, perhaps after a
 * release of which it has no answer. The next process adopts the lease. There B and E adopt the lock, and C, a Lock of the same
 * name, is under way beside them. D is a mutex of another session. A session's keys go by its lease, so B, E and C may want the
 * same key.
 * See lock.pml for the rest of the protocol: here no request is lost, but each may take its time, and one may be sent twice.
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef COPIES
#define COPIES 1 /* of each request, at most 2 */
#endif
#ifdef SHORTEST
#define scratch
#else
#define scratch hidden /* not part of the state, which a breadth-first search does not allow */
#endif
#define ok(m) (MUTANT != m) /* the line is there: mutant m is without it */

#define A 0
#define B 1
#define C 2
#define D 3
#define E 4
#define name(i) (65 + (i))

/* Etcd: the create revision of each key, 0 if it is not there, and who wrote it. Keys 0 and 1 go by the lease, key 2 is D's. */
byte c[3], by[3], rev;

#define IDLE 0
#define ASKING 1
#define WAITING 2
#define HELD 3
#define OVER 4
#define AWAY 5 /* found no lock to adopt */
byte state[5], me[5], key[5]; /* me: the revision that it knows its entry by */
/* Requests on their way: Puts of an acquisition's key; deletions of its key, which compare the revision. */
byte puts[5], deletes[5], reply[5]; /* reply: a revision, or REFUSED */
bool done[5];
#define REFUSED 255
bool used[2]; /* by an acquisition of the new session: whoever ends its use frees the key */
bool orphaned; /* A's Orphan has returned */
scratch byte j;

#define below(k, i) ((k) != key[i] && c[k] && c[k] < me[i])
#define blocked(i) (below(0, i) || below(1, i) || below(2, i))
#define send(what, i) what[i] = COPIES

inline grant(i) {
	printf("%c: has the lock\n", name(i));
	for (j : 0 .. 4) {
		assert(j == i || state[j] != HELD) /* exclusion: nobody else has the lock */
	}
	state[i] = HELD
}

/* A process before has the lock. It may release it and end before the answer. */
proctype before() {
	if
	:: atomic { state[A] = OVER; send(deletes, A); printf("%c: releases the lock\n", name(A)) }
	:: skip
	fi;
	atomic { !ok(33) || !deletes[A] -> state[A] = OVER; orphaned = true; printf("%c: Orphan returns\n", name(A)) }
}

proctype adopt(byte i) {
	byte found;
	bool there, waits, left;
	orphaned;
again:	do
	:: atomic { /* Read what hangs on the lease. An entry that C has written, or the other one has adopted, is the session's. */
		found = (by[0] == A -> c[0] : 0);
		if
		:: !found -> state[i] = AWAY; printf("%c: finds nothing to adopt\n", name(i)); goto end
		:: else -> there = true; printf("%c: finds the entry of revision %d\n", name(i), found)
		fi }
		if
		:: ok(36) -> skip
		:: else -> atomic { there = (c[0] == found); printf("%c: reads whether the entry is there\n", name(i)) }
		fi;
		atomic { waits = used[0] && ok(34);
		if
		:: !waits -> used[0] = true; key[i] = 0; printf("%c: claims its key\n", name(i))
		:: waits && ok(35) -> printf("%c: waits, for the key is in use\n", name(i))
		:: else -> state[i] = AWAY; printf("%c: finds nothing to adopt\n", name(i)); goto end
		fi }
		if
		:: waits -> atomic { !used[0] || c[0] != found }
		:: else -> atomic { /* Read whether the entry is there. */
			if :: ok(36) -> there = (c[0] == found) :: else fi;
			if
			:: there -> me[i] = found; by[0] = i; state[i] = WAITING; printf("%c: adopts it\n", name(i)); break
			:: else -> used[0] = false; printf("%c: it is gone\n", name(i))
			fi }
		fi
	od;
	if
	:: atomic { !blocked(i) -> grant(i) }
	:: atomic { !left -> /* its ctx ends: the entry stays, and is left to the next call */
		left = true; state[i] = IDLE; used[0] = used[0] && !ok(37);
		if :: c[0] == me[i] -> by[0] = A :: else fi;
		me[i] = 0; printf("%c: leaves the entry to the next call\n", name(i)); goto again }
	fi;
	atomic { state[i] = OVER; send(deletes, i); printf("%c: releases the lock\n", name(i)) }
	atomic { done[i] && !deletes[i] -> used[0] = false }
end:	skip
}

/* A Lock, of the new session or of D's. */
proctype mutex(byte i) {
	if :: i == C -> orphaned :: else fi;
	atomic { key[i] = (i == D -> 2 : (used[0] -> 1 : 0));
		if :: i == C -> used[key[i]] = true :: else fi;
		state[i] = ASKING; send(puts, i); printf("%c: asks for the lock, with key %d\n", name(i), key[i]) }
	do
	:: atomic { reply[i] == REFUSED && !puts[i] -> /* somebody's entry is there */
		used[0] = false; used[1] = true; key[i] = 1; reply[i] = 0; send(puts, i);
		printf("%c: takes another key\n", name(i)) }
	:: atomic { reply[i] && reply[i] != REFUSED -> me[i] = reply[i]; state[i] = WAITING; break }
	od;
	atomic { !blocked(i) -> grant(i) }
	atomic { state[i] = OVER; send(deletes, i); printf("%c: releases the lock\n", name(i)) }
	atomic { done[i] && !deletes[i] && !puts[i] -> if :: i == C -> used[key[i]] = false :: else fi }
}

proctype net(byte i) {
end:	do
	:: atomic { puts[i] -> puts[i]--;
		if
		:: !c[key[i]] && !me[i] && !reply[i] -> rev++; c[key[i]] = rev; by[key[i]] = i; reply[i] = rev; printf("etcd: at %d the entry of %c is written\n", rev, name(i))
		:: c[key[i]] && by[key[i]] != i && !reply[i] -> reply[i] = REFUSED; printf("etcd: refuses the entry of %c\n", name(i))
		:: else /* a copy: the value says whose entry is there, and a later one is settled as in lock.pml */
		fi }
	:: atomic { deletes[i] -> deletes[i]--; done[i] = true;
		if
		:: me[i] && c[key[i]] == me[i] -> rev++; c[key[i]] = 0; printf("etcd: at %d the entry of %c is deleted\n", rev, name(i))
		:: else
		fi }
	od
}

/* The new session looks through its lease now and then, and removes what it has written and nobody uses. */
proctype sweep() {
end:	do
	:: atomic { orphaned && ((c[0] && !used[0] && by[0] != A) || (c[1] && !used[1])) ->
		j = (c[0] && !used[0] && by[0] != A -> 0 : 1);
		rev++; c[j] = 0; printf("somebody: at %d the session sweeps key %d\n", rev, j) }
	od
}

proctype rest() {
	timeout -> atomic { /* nothing more can happen */
		for (j : 0 .. 4) { assert(state[j] != WAITING && state[j] != ASKING) } /* served: whoever waited has had the lock */
	}
}

init {
	atomic {
		rev = 2; c[0] = 2; by[0] = A; state[A] = HELD; me[A] = 2; key[A] = 0;
		run before(); run adopt(B); run adopt(E); run mutex(C); run mutex(D);
		run net(A); run net(B); run net(C); run net(D); run net(E); run sweep(); run rest()
	}
}
