/*
 * The protocol of etcdlock, for the model checker Spin: N acquisitions of one
 * name, and an etcd that does everything which etcd and a network may do. Words,
 * order and the numbers I1 to I6 are those of doc.go; README.md says what is
 * searched, within which bounds, and what each MUTANT leaves out.
 *
 * Etcd keeps every revision: a read pinned at a revision, however late and from
 * whatever member, is a look at rec[] as of that revision. So what a waiter knows
 * is one number, the revision at which it judged the queue last.
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#define ok(m) (MUTANT != m) /* the line is there: it is left out of mutant m */

#ifndef N
#define N 3 /* acquisitions; with PAIR the first two are of one session, else each has its own */
#endif
#ifndef KINDS
#define KINDS 1111 /* of each acquisition, the first at the right: 1 a mutex, 2 a reader, 4 a writer, or a sum of these: any */
#endif
#ifndef TRIES
#define TRIES 0 /* a bit for each acquisition that may be a Try */
#endif
#ifndef FAULTS
#define FAULTS 0 /* requests or replies lost, requests sent twice, watches that fall silent: so many in all */
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
#ifndef TICKS
#define TICKS 0 /* of the clock, while session 0 lives; a lease is granted for TTL of them */
#endif
#ifndef LATE
#define LATE 0 /* requests that etcd carries out when nobody looks for them any more */
#endif
#define TTL 3
#ifdef SHORTEST
#define scratch
#endif

#ifdef PAIR
#define ses(i) ((i) < 2 -> 0 : (i) - 1)
#else
#define ses(i) (i)
#endif
#define COPIES (FAULTS + LATE + 1) /* entries that one acquisition's txn can write, one after the other */
#define R (N * COPIES)
#define NONE 255
#define owner(r) ((r) / COPIES)

/* An entry as etcd has it. A mutex has an exclusive key, a reader a shared one, a
 * writer both. Key n of a session is its n-th lowest. */
#define EXCLUSIVE 1
#define SHARED 2
typedef entry {
	byte c;    /* create revision, 0: never written */
	byte x, s; /* when its exclusive, its shared key went; 0: it is there. One that it never had went at c */
	byte n     /* which key of its session */
};
entry rec[R];
byte rev = 1;
bool leased[N] = true; /* by session: etcd has its lease */

/* An acquisition. RELEASED, ABANDONED: its removal is under way. OVER: etcd has
 * confirmed it. LOST: somebody else did. */
#define ENQUEUED 1
#define HELD 2
#define RELEASED 3
#define ABANDONED 4
#define LOST 5
#define OVER 6
byte state[N], kind[N], key[N];
bool uses[N];       /* its key is in use */
byte me[N] = NONE;  /* the entry that it knows to be its own */
byte at[N];         /* the revision at which it judged the queue */
byte on[N];         /* the entry that it watches, plus 1; plus R, if it stands by behind it */
bool try[N], deaf[N] /* its watch is silent */, doubt[N], fence[N] /* in use */, down[N] /* downgraded */;
bool over[N];       /* by session: it has ended, as far as it knows */
bool hit[N], had[N];  /* somebody else removed the entry; it had the lock. For assertions only */

/* Requests on their way, and the reply to the one that is waited for. */
#define PUT 1
#define DELETE 2
byte call[N], reply[N], victim[N] /* the revision that DELETE compares */;
byte puts[N], deletes[N], downs[N], txns[N] /* 1: guarded by the exclusive key, 2: by the shared one */;
#define LOCKED 252
#define TAKEN 253
#define NO_LEASE 254
#define DONE 1

byte faults, cancels, others, late = LATE, txnsLeft = USES, ticks = TICKS;
#ifndef SHORTEST
#define scratch hidden /* not part of the state: a breadth-first search can't have that */
#endif
scratch int kinds = KINDS;
scratch byte r, j, q, top, a; /* for one step at a time */
byte leaseLeft = TTL, trusted = TTL, ago, renewing; /* the lease of session 0: see lease() */

#define rv(i) rec[me[i]].c
#define xAt(r, q) (rec[r].c && rec[r].c <= (q) && (!rec[r].x || rec[r].x > (q)))
#define sAt(r, q) (rec[r].c && rec[r].c <= (q) && (!rec[r].s || rec[r].s > (q)))
#define alive(r) (rec[r].c && (!rec[r].x || !rec[r].s))
#define exclusive(i) (kind[i] & EXCLUSIVE)
#define ownAt(i, q) ((exclusive(i) && !down[i]) -> xAt(me[i], q) : sAt(me[i], q)) /* the key that it is known by */
#define valid(s) (!over[s] && ((s) != 0 || trusted > 0 || !ok(23)))

/* When entry r stopped blocking acquisition i; 0: not yet. I2 */
#define maxOf(a, b) ((a) > (b) -> (a) : (b))
#define left(r, i) (exclusive(i) -> ((rec[r].x && rec[r].s) -> maxOf(rec[r].x, rec[r].s) : 0) : rec[r].x)
#define gone(r, i) (ok(10) -> left(r, i) : rec[r].x)
#define blockedBy(r, i, q) (rec[r].c && rec[r].c < rv(i) && rec[r].c <= (q) && (gone(r, i) == 0 || gone(r, i) > (q)))

/* The waitlist: entries of the same session. One of them is over if its removal is
 * confirmed, or if it was given back and its fence is not in use: so the next one
 * has the lock while the key is on its way out (hand-over). Lost ones pass
 * nothing on: their followers look at etcd. An own entry is a key at a revision. */
#define listed(r, i) (owner(r) != i && ses(owner(r)) == ses(i) && me[owner(r)] == r)
#define unfenced(j) ((!fence[j] || !ok(15)) && (!down[j] || !ok(19)))
#define isOver(j) (state[j] == OVER || (state[j] == RELEASED && unfenced(j)) || (state[j] == LOST && !ok(16)))
#define watches(i) (on[i] && on[i] <= R && !deaf[i])
#define standsBy(r, i) (listed(r, i) && !isOver(owner(r)) && state[owner(r)] != LOST)

#define handed(i) (ses(i) == 0 && N > 1 && ((i == 0 && state[1] == RELEASED) || (i == 1 && state[0] == RELEASED)))
/* A granted exclusive entry strikes all of others below it, for those behind it in the list. */
#ifdef PAIR
#define struck(r, i) ((i) < 2 && had[1 - (i)] && exclusive(1 - (i)) && rec[r].c < rv(1 - (i)) && rv(1 - (i)) < rv(i))
#else
#define struck(r, i) false
#endif
/* view sets top to the highest entry that blocks i at revision q. */
inline view(i, q) {
	top = NONE;
	for (r : 0 .. R - 1) {
		if
		:: !try[i] && blockedBy(r, i, q) && !struck(r, i) && !(listed(r, i) && isOver(owner(r))) && (top == NONE || rec[r].c > rec[top].c) &&
			(ok(9) || exclusive(i) || state[owner(r)] == HELD) && (ok(17) || !handed(i) || ses(owner(r)) == ses(i)) -> top = r
		:: else
		fi
	}
}

/*** Etcd: whatever is on its way is carried out once, at any time, or lost. ***/

/* If(no key) Then(read the queue, Put) Else(Get): the reply is the entry. The
 * queue it shows is that of the entry's own revision. */
inline carryOutPut(i) {
	top = NONE; a = 0; /* who has the key; whether a Try is blocked */
	for (r : 0 .. R - 1) {
		if :: ses(owner(r)) == ses(i) && rec[r].n == key[i] && alive(r) -> top = r :: else fi;
		if :: alive(r) && (exclusive(i) || !rec[r].x) && (ok(5) || state[owner(r)] == HELD) -> a = 1 :: else fi
	}
	if
	:: !leased[ses(i)] -> a = NO_LEASE
	:: leased[ses(i)] && top != NONE -> a = (owner(top) == i -> top + 1 : TAKEN)
	:: leased[ses(i)] && top == NONE && try[i] && a -> a = LOCKED
	:: else ->
		r = i * COPIES;
		do :: rec[r].c -> r++ :: else -> break od;
		assert(r < (i + 1) * COPIES);
		rev++;
		rec[r].c = rev; rec[r].n = key[i];
		rec[r].x = (exclusive(i) -> 0 : rev);
		rec[r].s = ((kind[i] & SHARED) -> 0 : rev);
		a = r + 1;
		printf("etcd: the entry of %d is written at revision %d, key %d of session %d, kind %d\n", i, rev, key[i], ses(i), kind[i]);
		/* I6: no key is used anew while a write of its last user may come. */
		for (j : 0 .. N - 1) { assert(LATE || j == i || ses(j) != ses(i) || !uses[j] || key[j] != key[i]) }
		assert(LATE || uses[i])
	fi
}

/* If(create revision = victim) Then(Delete): by key and revision. I5 */
inline carryOutDelete(i) {
	a = DONE;
	for (r : 0 .. R - 1) {
		if
		:: alive(r) && ((ok(1) && owner(r) == i && rec[r].c == victim[i]) || (!ok(1) && ses(owner(r)) == ses(i) && rec[r].n == key[i])) ->
			rev++;
			rec[r].x = (rec[r].x -> rec[r].x : rev);
			rec[r].s = (rec[r].s -> rec[r].s : rev);
			printf("etcd: the entry of revision %d is deleted at %d, for %d\n", rec[r].c, rev, i)
		:: else
		fi
	}
}

inline answer(i, what) {
	if
	:: call[i] == what && !reply[i] -> reply[i] = a
	:: call[i] == what && !reply[i] && faults -> faults--; printf("net: the reply to %d is lost\n", i)
	:: call[i] != what || reply[i] -> skip
	fi
}

proctype net(byte i) {
end:	do
	:: atomic { puts[i] -> puts[i]--; carryOutPut(i); answer(i, PUT) }
	:: atomic { deletes[i] -> deletes[i]--; carryOutDelete(i); answer(i, DELETE) }
	:: atomic { downs[i] -> downs[i]--; /* If(the shared key at its revision) Then(Delete the exclusive one) */
		for (r : 0 .. R - 1) {
			if
			:: xAt(r, rev) && ((ok(24) && r == me[i] && sAt(r, rev)) || (!ok(24) && ses(owner(r)) == ses(i) && rec[r].n == key[i])) ->
				rev++; rec[r].x = rev;
				printf("etcd: the exclusive key of revision %d is deleted at %d: downgraded\n", rec[r].c, rev)
			:: else
			fi
		} }
	:: atomic { txns[i] -> /* the guard compares the create revision */
		a = 0;
		for (r : 0 .. R - 1) {
			if
			:: (ok(22) -> r == me[i] : (ses(owner(r)) == ses(i) && rec[r].n == key[i])) &&
				((txns[i] == 1 && xAt(r, rev)) || (txns[i] == 2 && sAt(r, rev))) -> a = 1
			:: else
			fi
		}
		printf("etcd: a transaction guarded by %d is carried out: %d\n", i, a);
		/* A former holder's guarded transaction changes nothing after the next grant. */
		for (j : 0 .. N - 1) {
			assert(!a || j == i || me[j] == NONE || rv(j) <= rv(i) || !had[j] || (txns[i] == 2 && !exclusive(j)))
		}
		txns[i] = 0 }
	:: atomic { puts[i] && faults -> faults--; puts[i]--; printf("net: a Put of %d is lost\n", i) }
	:: atomic { deletes[i] && faults -> faults--; deletes[i]--; printf("net: a Delete of %d is lost\n", i) }
	od
}

/*** An acquisition, from its first request to the last of what it leaves. ***/

inline send(i, what) {
	call[i] = what; reply[i] = 0;
	if :: what == PUT -> puts[i]++ :: else -> deletes[i]++ fi
}

/* unanswered: the request is sent again beside itself (hedge), or since it was lost. */
#define unanswered(i, n) (call[i] && !reply[i] && (n == 0 || (n < 2 && faults > 0)))
inline again(i, n) {
	if :: n -> faults-- :: else fi;
	n++;
	printf("%d: sends its request again\n", i)
}

inline grant(i) {
	printf("%d: granted, by the queue at revision %d\n", i, at[i]);
	/* I1: at a revision q it was in the queue, and what was below and blocks it was gone,
	 * but for entries of its own session that were given back with no fence in use. (One that
	 * somebody else removed learns of it with the reply to the release that let it in.) */
	q = rv(i); a = false;
	for (r : 0 .. R - 1) {
		j = owner(r);
		if
		:: !rec[r].c || rec[r].c >= rv(i) || (left(r, i) && left(r, i) <= rv(i)) -> skip
		:: else ->
			if
			:: listed(r, i) && (state[j] == RELEASED || state[j] == OVER) && had[j] -> a = true
			:: else -> assert(left(r, i)); q = maxOf(q, left(r, i))
			fi
		fi
	}
	assert(ownAt(i, q) || (hit[i] && a));
	/* Nobody else who may believe to have the lock excludes it. */
	for (j : 0 .. N - 1) {
		assert(j == i || state[j] != HELD || !valid(ses(j)) || hit[i] || hit[j] || !(exclusive(i) || (exclusive(j) && !down[j])))
	}
	state[i] = HELD; had[i] = true; at[i] = 0
}

/* ask takes the lowest free key, and sends the txn that writes the entry. */
inline ask(i) {
	do
	:: j = 0;
		do
		:: j < N && (j == i || ses(j) != ses(i) || !uses[j] || key[j] != key[i]) -> j++
		:: else -> break
		od;
		if :: j < N -> key[i]++ :: else -> break fi
	od;
	uses[i] = true; state[i] = ENQUEUED; send(i, PUT);
	printf("%d: asks for the lock, with key %d of session %d\n", i, key[i], ses(i))
}

/* ghost sets top to what etcd has of i, by the nonce. */
inline ghost(i) {
	top = NONE;
	for (r : i * COPIES .. (i + 1) * COPIES - 1) { if :: alive(r) -> top = r :: else fi }
}

proctype acquisition(byte i) {
	do
	:: atomic { !state[i] -> ask(i) }
	:: atomic { reply[i] && reply[i] < LOCKED -> me[i] = reply[i] - 1; at[i] = rv(i); call[i] = 0; reply[i] = 0;
		printf("%d: is in the queue at revision %d\n", i, rv(i));
		if :: ownAt(i, at[i]) -> break :: else -> goto lost fi }
	:: atomic { reply[i] == LOCKED -> call[i] = 0; reply[i] = 0; printf("%d: Try says that it is locked\n", i); goto abandoned }
	:: atomic { reply[i] == TAKEN -> assert(LATE); call[i] = 0; reply[i] = 0; puts[i] == 0; /* not covered: requests under both keys */
		key[i] = key[i] + 2; printf("%d: passes over the key, and takes key %d\n", i, key[i]); send(i, PUT) }
	:: atomic { reply[i] == NO_LEASE -> over[ses(i)] = true; goto lost }
	:: atomic { unanswered(i, puts[i]) -> again(i, puts[i]); doubt[i] = ok(12) }
	:: atomic { cancels && call[i] -> cancels--; printf("%d: its ctx ends\n", i); doubt[i] = true; goto abandoned }
	od;
wait:	do
	/* Judge the queue at revision at: granted, or there is a blocker. */
	:: atomic { !on[i] && valid(ses(i)) -> view(i, at[i]);
		if
		:: top == NONE ->
			/* Own entries whose removal was confirmed: that request has read also whether this one was there. */
			q = at[i];
			for (r : 0 .. R - 1) {
				if :: ok(18) && listed(r, i) && state[owner(r)] == OVER && rec[r].c < rv(i) -> q = maxOf(q, gone(r, i)) :: else fi
			}
			if :: ownAt(i, q) || !ok(4) || !ok(8) -> grant(i); goto hold :: else -> goto lost fi
		:: top != NONE && standsBy(top, i) -> on[i] = R + top + 1
		:: else ->
			/* Watch it from now, and see whether it was there when the watch was: at the present, or,
			 * if that member lags, at a revision at which it was there still. */
			if
			:: on[i] = top + 1; if :: !ok(3) -> at[i] = rev :: else fi
			:: !blockedBy(top, i, rev) && ok(3) -> at[i] = rev; if :: ownAt(i, rev) :: else -> goto lost fi
			fi
		fi }
	:: atomic { on[i] > R && !standsBy(on[i] - R - 1, i) -> on[i] = 0 }
	/* The watch tells that the blocker went, and the queue is judged at that revision. */
	:: atomic { watches(i) && gone(on[i] - 1, i) > at[i] ->
		at[i] = (ok(4) -> gone(on[i] - 1, i) : rev - 2); on[i] = 0; printf("%d: hears that the blocker went, and looks at revision %d\n", i, at[i]);
		if :: !ok(7) -> try[i] = true :: else fi;
		if :: ownAt(i, at[i]) || !ok(4) || !ok(8) :: else -> goto lost fi }
	/* The watch ends or falls silent: ask etcd, in the same place of the queue. */
	:: atomic { watches(i) && faults -> faults--; deaf[i] = true; printf("%d: its watch is silent\n", i) }
	:: atomic { deaf[i] && ok(14) -> deaf[i] = false; on[i] = 0; at[i] = rev;
		if :: ownAt(i, rev) :: else -> goto lost fi }
	/* Its own entry went. */
	:: atomic { on[i] && !deaf[i] && !ownAt(i, rev) -> goto lost }
	:: atomic { !valid(ses(i)) -> goto lost }
	:: atomic { cancels -> cancels--; printf("%d: its ctx ends\n", i); goto abandoned }
	od;
hold:	do
	:: atomic { txnsLeft && !txns[i] && valid(ses(i)) -> txnsLeft--; txns[i] = (exclusive(i) && !down[i] -> 1 : 2); fence[i] = true;
		printf("%d: sends a guarded transaction\n", i) }
	:: atomic { kind[i] == 3 && !down[i] -> down[i] = true; downs[i] = 1; printf("%d: downgrades\n", i);
		if :: faults -> faults--; downs[i]++ :: skip fi }
	:: atomic { !ownAt(i, rev) || !valid(ses(i)) -> goto lost }
	:: atomic { state[i] = RELEASED; victim[i] = rv(i); send(i, DELETE); printf("%d: gives the lock back\n", i); goto remove }
	od;
abandoned: atomic { /* the entry is withdrawn, and what is written late too */
		state[i] = ABANDONED; on[i] = 0; at[i] = 0; deaf[i] = false; call[i] = 0; reply[i] = 0;
		if :: me[i] == NONE -> goto settle :: else -> victim[i] = rv(i); send(i, DELETE); goto remove fi
	}
lost:	atomic { /* what is left of it is removed */
		printf("%d: lost\n", i);
		state[i] = LOST; on[i] = 0; at[i] = 0; deaf[i] = false; call[i] = 0; reply[i] = 0;
		if :: me[i] == NONE || !ok(13) -> goto settle :: else -> victim[i] = rv(i); send(i, DELETE) fi
	}
remove:	do
	:: atomic { reply[i] -> printf("%d: its removal is confirmed\n", i);
		if :: state[i] != LOST -> state[i] = OVER :: else fi;
		call[i] = 0; reply[i] = 0; break }
	:: atomic { unanswered(i, deletes[i]) -> again(i, deletes[i]) }
	:: atomic { !leased[ses(i)] -> call[i] = 0; reply[i] = 0; break }
	od;
settle:	if :: !ok(2) -> uses[i] = false :: else fi;
	do /* look for what is written late, again and again while a request may be on its way */
	:: atomic { !call[i] && doubt[i] && leased[ses(i)] && ok(11) -> ghost(i);
		if
		:: top != NONE -> victim[i] = rec[top].c; send(i, DELETE)
		:: top == NONE && puts[i] -> if :: late -> late--; break :: skip fi
		:: else -> break
		fi }
	:: atomic { reply[i] -> call[i] = 0; reply[i] = 0 }
	:: atomic { unanswered(i, deletes[i]) -> again(i, deletes[i]) }
	:: atomic { !doubt[i] || !leased[ses(i)] || !ok(11) -> call[i] = 0; reply[i] = 0; break }
	od;
	atomic { uses[i] = false; at[i] = 0; victim[i] = 0; doubt[i] = 0; printf("%d: its key is free\n", i) }
end:	do /* the session sweeps its lease for what comes even later */
	:: atomic { LATE && ok(21) && !call[i] && leased[ses(i)] -> ghost(i);
		if :: top != NONE -> victim[i] = rec[top].c; send(i, DELETE) :: else fi }
	:: atomic { reply[i] -> call[i] = 0; reply[i] = 0 }
	:: atomic { unanswered(i, deletes[i]) -> again(i, deletes[i]) }
	od
}

/*** Leases, other people, and what is left in the end. ***/

inline endLease(sn) {
	rev++;
	for (r : 0 .. R - 1) {
		if :: ses(owner(r)) == sn && rec[r].c && !rec[r].x -> rec[r].x = rev :: else fi;
		if :: ses(owner(r)) == sn && rec[r].c && !rec[r].s -> rec[r].s = rev :: else fi
	}
	leased[sn] = false
}

proctype lease() { /* of session 0; leaseLeft is what etcd gives it, trusted what the session counts on */
end:	do
	:: atomic { !renewing && valid(0) && trusted < TTL -> renewing = 1; ago = 0 }
	:: atomic { renewing == 1 && leased[0] -> leaseLeft = TTL; renewing = 2 }
	:: atomic { renewing == 1 && !leased[0] -> over[0] = true; renewing = 0 }
	:: atomic { renewing == 2 -> renewing = 0;
		/* I4: the deadline counts from before the request was sent. */
		if
		:: trusted && !over[0] -> trusted = maxOf(trusted, (ok(6) -> TTL - ago : TTL))
		:: else
		fi }
	:: atomic { ticks || (!trusted && leaseLeft) ->
		ticks = (ticks -> ticks - 1 : 0); ago = (ago < TTL -> ago + 1 : TTL);
		leaseLeft = (leaseLeft -> leaseLeft - 1 : 0); trusted = (trusted -> trusted - 1 : 0);
		printf("a tick of the clock: etcd gives session 0 %d more, itself counts on %d\n", leaseLeft, trusted) }
	:: atomic { !leaseLeft && leased[0] -> assert(!trusted); printf("etcd: the lease of session 0 has expired\n"); endLease(0) }
	:: atomic { !trusted && !over[0] -> over[0] = true }
	od
}

proctype foreigners() {
end:	do
	:: atomic { others -> others--; /* Break */
		r = 0; do :: r < R - 1 -> r++ :: break od;
		if
		:: rec[r].c && !rec[r].x -> rev++; rec[r].x = rev
		:: rec[r].c && !rec[r].s -> rev++; rec[r].s = rev
		:: !alive(r)
		fi;
		hit[owner(r)] = true; printf("somebody removes a key of %d\n", owner(r)) }
	:: atomic { others -> others--;
		j = 0; do :: j < ses(N - 1) -> j++ :: break od;
		printf("somebody revokes the lease of session %d\n", j);
		if :: leased[j] -> endLease(j) :: else fi;
		for (a : 0 .. N - 1) { if :: ses(a) == j -> hit[a] = true :: else fi } }
	:: atomic { !leased[0] && !over[0] -> over[0] = true }
	:: atomic { !leased[1] && !over[1] -> over[1] = true }
	:: atomic { ses(N-1) == 2 && !leased[2] && !over[2] -> over[2] = true }
	od
}

proctype rest() {
	timeout -> atomic {
		for (r : 0 .. N - 1) { assert(!uses[r]) } /* whoever waited had the lock, or gave up */
		for (r : 0 .. R - 1) { assert(!alive(r)) } /* and nothing is left */
	}
}

init {
	atomic {
		for (a : 0 .. N - 1) {
			q = kinds % 10; kinds = kinds / 10;
			if :: q & 1 -> kind[a] = 1 :: q & 2 -> kind[a] = 2 :: q & 4 -> kind[a] = 3 fi;
			if :: TRIES & (1 << a) -> try[a] = true :: true fi
		}
		select(cancels : 0 .. CANCELS);
		select(others : 0 .. OTHERS);
		faults = FAULTS;
		for (a : 0 .. N - 1) {
			if :: ses(N - 1) == N - 1 || a > 1 -> ask(a) :: else fi; /* its request may be late */
			run acquisition(a); run net(a)
		}
		if :: TICKS -> run lease() :: else fi;
		if :: OTHERS || TICKS -> run foreigners() :: else fi;
		run rest()
	}
}
