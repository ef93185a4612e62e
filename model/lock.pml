/*
 * The protocol of etcdlock, for the model checker Spin: N acquisitions of one
 * name, and an etcd that does all that etcd and a network may do. The words, and
 * the invariants I1 to I6, are those of docs/protocol.md. README.md says what is searched,
 * within which bounds, and what each MUTANT leaves out.
 *
 * Etcd keeps every revision: a read that is pinned at a revision, however late
 * and from whatever member, is a look at rec[] as of that revision. So what a
 * waiter knows is one number, the revision at which it judged the queue last.
 *
 * A request of the code may carry the commands of many names. For this name it is removals, and then at most
 * one enqueue, with nothing in between: steps of this model that follow each other. Nothing here depends on
 * another name, and the revisions of other names are never compared with those of this one.
 */
#include "bounds.pml"

#define ok(m) (MUTANT != m) /* the line is there: mutant m is without it */
#define TTL 3
#define COPIES (FAULTS + LATE + 1) /* entries that the txn of one acquisition may write, one after the other */
#define R (N * COPIES)
#define NONE 255
#define owner(r) ((r) / COPIES)
#define ses(i) ((PAIR && (i) < 2) -> 0 : (i) - PAIR)
#define name(i) (65 + (i)) /* A, B, ... */

/* An entry as etcd has it. A mutex has an exclusive key, a reader a shared one, a writer both. */
mtype = { writer, reader, mutex }; /* 3, 2, 1 */
typedef entry {
	byte c;    /* create revision, 0: never written */
	byte x, s; /* when its exclusive, its shared key went; 0: it is there. One that it never had went at c */
	byte n     /* which key of its session */
};
entry rec[R];
byte rev = 1;
bool leased[N] = true; /* by session: etcd has its lease */

/* An acquisition. RELEASED and ABANDONED are being removed, OVER is removed. LOST: by somebody else. */
#define ENQUEUED 1
#define HELD 2
#define RELEASED 3
#define ABANDONED 4
#define LOST 5
#define OVER 6
byte state[N], kind[N], key[N];
bool uses[N];      /* its key is in use */
byte me[N] = NONE; /* the entry that it knows to be its own */
byte at[N];        /* the revision at which it judged the queue */
byte on[N];        /* the entry that it watches, plus 1; plus R where it stands by behind it */
bool try[N], deaf[N] /* its watch is silent */, doubt[N], fence[N] /* in use */, down[N] /* downgraded */;
bool ended[N];     /* by session: as far as it knows */
bool told[N];      /* its session has heard that its downgrade was carried out; only mutant 28 asks */
bool hit[N], had[N]; /* for assertions: somebody else removed the entry; it had the lock */

/* Requests on their way, and the reply to the one that is waited for. */
#define PUT 1
#define DELETE 2
#define DONE 1
#define LOCKED 252
#define TAKEN 253
#define NO_LEASE 254
byte call[N], reply[N], victim[N] /* the revision that DELETE compares */;
byte puts[N], deletes[N], downs[N], txns[N] /* 1: guarded by the exclusive key, 2: by the shared one */;
byte faults = FAULTS, cancels, others, late = LATE, uncommitted = USES;
byte ticks = TICKS, remains = TTL, trusted = TTL, ago, renewing; /* the lease of session 0: see lease */
#ifndef SHORTEST
#define scratch hidden /* not part of the state, which a breadth-first search does not allow */
#else
#define scratch
#endif
scratch byte r, j, q, top, a; /* each is set before it is used, within one step */
scratch int kinds = KINDS;

#define maxOf(v, w) ((v) > (w) -> (v) : (w))
#define rv(i) rec[me[i]].c
#define xAt(r, q) (rec[r].c && rec[r].c <= (q) && (!rec[r].x || rec[r].x > (q)))
#define sAt(r, q) (rec[r].c && rec[r].c <= (q) && (!rec[r].s || rec[r].s > (q)))
#define alive(r) (rec[r].c && (!rec[r].x || !rec[r].s))
#define exclusive(i) (kind[i] & 1)
#define shared(i) (kind[i] & 2)
#define sameKey(r, i) (ses(owner(r)) == ses(i) && rec[r].n == key[i])
#define ownAt(i, q) ((exclusive(i) && !down[i]) -> xAt(me[i], q) : sAt(me[i], q)) /* the key that it is known by */
#define valid(s) (!ended[s] && ((s) || trusted || !ok(12)))

/* I2: exclusive entries wait for all lower ones, shared ones for the exclusive ones.
 * went: when entry r stopped blocking i; 0: not yet. */
#define went(r, i) (exclusive(i) -> ((rec[r].x && rec[r].s) -> maxOf(rec[r].x, rec[r].s) : 0) : rec[r].x)
#define gone(r, i) (ok(9) -> went(r, i) : rec[r].x)
#define blockedBy(r, i, q) (rec[r].c && rec[r].c < rv(i) && rec[r].c <= (q) && (!gone(r, i) || gone(r, i) > (q)) && (ok(8) || exclusive(i) || state[owner(r)] == HELD))

/* The waitlist: the entries of one session, each a key at a revision. One is over when
 * its removal is confirmed, when it was released with no fence in use, or abandoned: so the
 * next one has the lock while that key is on its way out (hand-over). One that was lost
 * passes nothing on. A granted exclusive entry strikes all other sessions' keys below it. */
#define listed(r, i) (owner(r) != i && ses(owner(r)) == ses(i) && me[owner(r)] == r)
#define over(j) (state[j] == OVER || state[j] == ABANDONED || (state[j] == RELEASED && (!fence[j] || !ok(13))) || (state[j] == LOST && !ok(14)))
#define standsBy(r, i) (listed(r, i) && !over(owner(r)) && state[owner(r)] != LOST)
#define watches(i) (on[i] && on[i] <= R && !deaf[i])
#define struck(r, i) (PAIR && (i) < 2 && ((had[1 - (i)] && exclusive(1 - (i)) && rec[r].c < rv(1 - (i)) && rv(1 - (i)) < rv(i)) || \
	(!ok(15) && state[1 - (i)] == RELEASED && ses(owner(r)))))

/* view sets top to the highest entry that blocks i at revision q. That it wrote its entry says it all to a Try. */
inline view(i, q) {
	top = NONE;
	for (r : 0 .. R - 1) {
		if
		:: !try[i] && blockedBy(r, i, q) && !struck(r, i) && !(listed(r, i) && over(owner(r))) && (top == NONE || rec[r].c > rec[top].c) -> top = r
		:: else
		fi
	}
}

#include "etcd.pml"

/*** An acquisition, from its first request to the last of what it leaves. ***/

/* ask takes the lowest free key of the session, and sends the txn that writes the entry. */
inline ask(i) {
	do
	:: j = 0;
		do
		:: j < N && (j == i || ses(j) != ses(i) || !uses[j] || key[j] != key[i]) -> j++
		:: else -> break
		od;
		if :: j < N -> key[i]++ :: else -> break fi
	od;
	uses[i] = true; state[i] = ENQUEUED; call[i] = PUT; puts[i]++;
	printf("%c: a %e asks for the lock, with key %d of session %d\n", name(i), kind[i], key[i], ses(i))
}

inline remove(i, revision) { victim[i] = revision; call[i] = DELETE; reply[i] = 0; deletes[i]++ }
inline answered(i) { call[i] = 0; reply[i] = 0 }

/* A request is sent again, beside itself (hedge) or since it was lost. */
#define unanswered(i, n) (call[i] && !reply[i] && (!n || (n < 2 && faults)))
inline again(i, n) {
	if :: n -> faults-- :: else fi;
	n++; printf("%c: sends its request again\n", name(i))
}

inline grant(i) {
	printf("%c: granted\n", name(i));
	/* I1: at a revision q it was in the queue, and all that blocks it was gone from below, but for entries
	 * of its own session that were abandoned, or released with no fence in use. (Where such an entry lets
	 * it in, and somebody else has removed it, it learns so with the reply to that release.) The code
	 * decides this in entitledLocked of internal/waitlist/grant.go. */
	q = rv(i); a = 0;
	for (r : 0 .. R - 1) {
		j = owner(r);
		if
		:: !rec[r].c || rec[r].c >= rv(i) || (went(r, i) && went(r, i) <= rv(i))
		:: else ->
			if
			:: listed(r, i) && (state[j] == ABANDONED || ((state[j] == RELEASED || state[j] == OVER) && had[j] && (!fence[j] || !ok(13)))) -> a = 1
			:: else -> q = maxOf(q, went(r, i));
				assert(went(r, i)) /* I1, I2: nothing that blocks it is below */
			fi
		fi
	}
	assert(ownAt(i, q) || (hit[i] && a)); /* I1: it was in the queue at that revision */
	for (j : 0 .. N - 1) {
		assert(state[j] != HELD || !valid(ses(j)) || hit[i] || hit[j] || !(exclusive(i) || (exclusive(j) && !down[j]))) /* exclusion: nobody else believes to have what this one excludes */
	}
	state[i] = HELD; had[i] = true; at[i] = 0
}

/* ghost sets top to what etcd has of i: the nonce tells. */
inline ghost(i) {
	top = NONE;
	for (r : i * COPIES .. (i + 1) * COPIES - 1) { if :: alive(r) -> top = r :: else fi }
}

#define readerWaits(j) (j < N && exclusive(j) == 0 && uses[j] && state[j] < HELD)
#define readersWait (readerWaits(0) || readerWaits(1) || readerWaits(N - 1))

proctype acquisition(byte i) {
	do
	:: atomic { !state[i] -> ask(i) }
	:: atomic { reply[i] && reply[i] < LOCKED -> me[i] = reply[i] - 1; at[i] = rv(i); answered(i);
		printf("%c: is in the queue, at revision %d\n", name(i), rv(i));
		if :: ownAt(i, at[i]) -> break :: else -> goto lost fi }
	:: atomic { reply[i] == LOCKED -> printf("%c: is told that it is locked\n", name(i)); goto abandoned }
	:: atomic { reply[i] == TAKEN && !puts[i] -> assert(LATE); answered(i);
		key[i] = key[i] + 2; call[i] = PUT; puts[i]++; printf("%c: passes over that key\n", name(i)) }
	:: atomic { reply[i] == NO_LEASE -> ended[ses(i)] = true; goto lost }
	:: atomic { unanswered(i, puts[i]) -> again(i, puts[i]); doubt[i] = ok(2) }
	:: atomic { cancels && call[i] -> cancels--; printf("%c: its ctx ends\n", name(i)); doubt[i] = true; goto abandoned }
	od;
wait:	do
	:: atomic { !on[i] && valid(ses(i)) -> view(i, at[i]);
		assert(MUTANT || ownAt(i, at[i])); /* I3: the queue is judged at a revision at which the own entry is in it */
		if
		:: top == NONE ->
			/* The request that removed an own entry has read also whether this one was there. */
			q = at[i];
			for (r : 0 .. R - 1) { if :: listed(r, i) && state[owner(r)] == OVER && rec[r].c < rv(i) && ok(16) -> q = maxOf(q, gone(r, i)) :: else fi }
			if :: ownAt(i, q) || !ok(5) || !ok(7) -> grant(i); goto hold :: else -> goto lost fi
		:: top != NONE && standsBy(top, i) -> on[i] = R + top + 1
		:: else ->
			/* Watch it from now, then see whether it was there: at a revision at which it was, if that member lags, or not. */
			if
			:: on[i] = top + 1; if :: !ok(4) -> at[i] = rev :: else fi
			:: !blockedBy(top, i, rev) && ok(4) -> at[i] = rev; if :: ownAt(i, rev) :: else -> goto lost fi
			fi
		fi }
	:: atomic { on[i] > R && !standsBy(on[i] - R - 1, i) -> on[i] = 0 }
	/* That it was downgraded is known from etcd, whether a reply said so or not. */
	:: atomic { on[i] > R && standsBy(on[i] - R - 1, i) && gone(on[i] - R - 1, i) && (ok(28) || told[owner(on[i] - R - 1)]) -> on[i] = 0; at[i] = rev;
		if :: ownAt(i, rev) :: else -> goto lost fi }
	/* The watch tells that the blocker went: look at that revision. */
	:: atomic { watches(i) && gone(on[i] - 1, i) > at[i] -> at[i] = (ok(5) -> gone(on[i] - 1, i) : 1); on[i] = 0;
		printf("%c: hears that its blocker went, and looks at revision %d\n", name(i), at[i]);
		if :: !ok(6) -> try[i] = true :: else fi;
		if :: ownAt(i, at[i]) || !ok(5) || !ok(7) :: else -> goto lost fi }
	/* The watch ends or falls silent: ask etcd, in the same place of the queue. */
	:: atomic { watches(i) && (faults || LIVE) -> faults = (LIVE -> faults : faults - 1); deaf[i] = true; printf("%c: its watch is silent\n", name(i)) }
	:: atomic { deaf[i] && ok(10) -> deaf[i] = false; on[i] = 0; at[i] = rev; if :: ownAt(i, rev) :: else -> goto lost fi }
	:: atomic { on[i] && !deaf[i] && !ownAt(i, rev) -> goto lost }
	:: atomic { !valid(ses(i)) -> goto lost }
	:: atomic { cancels -> cancels--; printf("%c: its ctx ends\n", name(i)); goto abandoned }
	od;
hold:	do
	:: atomic { uncommitted && !txns[i] && valid(ses(i)) -> uncommitted--; txns[i] = ((exclusive(i) && !down[i]) -> 1 : 2); fence[i] = true;
		printf("%c: sends a guarded transaction\n", name(i)) }
	:: atomic { kind[i] == writer && !down[i] -> down[i] = true; downs[i] = 1; printf("%c: downgrades\n", name(i));
		if :: faults -> faults--; downs[i]++ :: skip fi }
	:: atomic { !ownAt(i, rev) || !valid(ses(i)) -> goto lost }
	:: atomic { !(STAYS && down[i]) || !readersWait -> state[i] = RELEASED; remove(i, rv(i)); printf("%c: gives the lock back\n", name(i)); goto removing }
	od;
abandoned: atomic {
		state[i] = ABANDONED; on[i] = 0; deaf[i] = false; at[i] = 0; answered(i);
		if :: me[i] != NONE && ok(21) -> remove(i, rv(i)) :: else -> goto settling fi
	}
	goto removing;
lost:	atomic { /* what is left of it is removed */
		state[i] = LOST; on[i] = 0; deaf[i] = false; at[i] = 0; answered(i); printf("%c: has lost it\n", name(i));
		if :: me[i] != NONE && ok(23) -> remove(i, rv(i)) :: else -> goto settling fi
	}
removing: do
	:: atomic { reply[i] -> if :: state[i] != LOST -> state[i] = OVER :: else fi; answered(i);
		printf("%c: its removal is confirmed\n", name(i)); break }
	:: atomic { unanswered(i, deletes[i]) -> if :: ok(20) -> again(i, deletes[i]) :: else -> break fi }
	:: atomic { !leased[ses(i)] -> answered(i); break }
	od;
settling: if :: ok(1) :: else -> uses[i] = false fi;
	do /* look for what is written late, again and again while a request may be on its way */
	:: atomic { !call[i] && doubt[i] && leased[ses(i)] && ok(22) -> ghost(i);
		if
		:: top != NONE -> remove(i, rec[top].c)
		:: top == NONE && puts[i] -> if :: late -> late--; break :: skip fi
		:: else -> break
		fi }
	:: atomic { reply[i] -> answered(i) }
	:: atomic { unanswered(i, deletes[i]) && ok(20) -> again(i, deletes[i]) }
	:: atomic { !doubt[i] || !leased[ses(i)] || !ok(22) -> answered(i); break }
	od;
	atomic { uses[i] = false; victim[i] = 0; doubt[i] = 0; printf("%c: its key is free\n", name(i));
		/* What is on its way compares a revision that is gone: it may as well be forgotten, and so may this acquisition. */
		if :: !MUTANT -> deletes[i] = 0; downs[i] = 0; txns[i] = 0 :: else fi;
		if :: !MUTANT && !USES && !(PAIR && i < 2) -> me[i] = NONE; had[i] = 0; hit[i] = 0; down[i] = 0; try[i] = 0 :: else fi
	}
end:	do /* replies that come late */
	:: atomic { reply[i] -> answered(i) }
	od
}

/* The session sweeps its lease for keys that no acquisition uses: what came when nobody looked any more. */
#define inUse(r, j) (uses[j] && ses(j) == ses(owner(r)) && key[j] == rec[r].n)
#define stray(r) (alive(r) && leased[ses(owner(r))] && !inUse(r, owner(r)) && !(PAIR && owner(r) < 2 && inUse(r, 1 - owner(r))))
proctype sweep(byte i) {
end:	do
	:: atomic { ok(24) && (stray(i * COPIES) || stray(i * COPIES + 1) || stray((i + 1) * COPIES - 1)) ->
		for (r : i * COPIES .. (i + 1) * COPIES - 1) {
			if
			:: stray(r) -> rev++; rec[r].x = (rec[r].x -> rec[r].x : rev); rec[r].s = (rec[r].s -> rec[r].s : rev);
				printf("etcd: at %d the entry of revision %d is deleted, for %c\n", rev, rec[r].c, name(i))
			:: else
			fi
		} }
	od
}

/*** Leases, other people, and what is left in the end. ***/

inline endLease(sn) {
	rev++; leased[sn] = false; printf("etcd: at %d the lease of session %d ends\n", rev, sn);
	for (r : 0 .. R - 1) {
		if :: ses(owner(r)) == sn && rec[r].c && !rec[r].x -> rec[r].x = rev :: else fi;
		if :: ses(owner(r)) == sn && rec[r].c && !rec[r].s -> rec[r].s = rev :: else fi
	}
}

proctype lease() { /* of session 0: remains is what etcd gives it, trusted what the session counts on */
end:	do
	:: atomic { !renewing && valid(0) && trusted < TTL -> renewing = 1; ago = 0 }
	:: atomic { renewing == 1 && leased[0] -> remains = TTL; renewing = 2 }
	:: atomic { renewing == 1 && !leased[0] -> ended[0] = true; renewing = 0 }
	:: atomic { renewing == 2 -> renewing = 0; /* the deadline counts from before the request was sent */
		if :: trusted && !ended[0] -> trusted = maxOf(trusted, (ok(11) -> TTL - ago : TTL)) :: else fi; ago = 0 }
	:: atomic { ticks || (!trusted && remains) -> ticks = (ticks -> ticks - 1 : 0); ago = ((renewing && ago < TTL) -> ago + 1 : ago);
		remains = (remains -> remains - 1 : 0); trusted = (trusted -> trusted - 1 : 0);
		printf("clock: etcd gives session 0 another %d, itself counts on %d\n", remains, trusted) }
	:: atomic { !remains && leased[0] -> endLease(0);
		assert(!trusted) } /* I4: etcd's lease outlives the deadline */
	:: atomic { !trusted && !ended[0] -> ended[0] = true }
	od
}

proctype others_() {
end:	do
	:: atomic { others -> others--; /* Break */
		r = 0; do :: r < R - 1 -> r++ :: break od;
		if
		:: rec[r].c && !rec[r].x -> rev++; rec[r].x = rev; printf("somebody: at %d removes %c's exclusive key\n", rev, name(owner(r)))
		:: rec[r].c && !rec[r].s -> rev++; rec[r].s = rev; printf("somebody: at %d removes %c's shared key\n", rev, name(owner(r)))
		:: !alive(r)
		fi;
		hit[owner(r)] = true }
	:: atomic { others -> others--; /* a lease revoked */
		q = 0; do :: q < ses(N - 1) -> q++ :: break od;
		if :: leased[q] -> printf("somebody: revokes the lease of session %d\n", q); endLease(q) :: else fi;
		for (a : 0 .. N - 1) { if :: ses(a) == q -> hit[a] = true :: else fi } }
	:: atomic { !leased[0] && !ended[0] -> ended[0] = true } /* as the next renewal finds */
	:: atomic { !leased[1] && !ended[1] -> ended[1] = true }
	:: atomic { !leased[N - 1] && !ended[N - 1] -> ended[N - 1] = true }
	od
}

proctype rest() {
	timeout -> atomic { /* nothing more can happen */
		for (r : 0 .. N - 1) { assert(!uses[r]) } /* served: whoever waited has had the lock, or gave up */
		for (r : 0 .. R - 1) { assert(!alive(r)) } /* cleared: nothing is left */
	}
}

init {
	atomic {
		for (a : 0 .. N - 1) {
			q = kinds % 10; kinds = kinds / 10;
			if :: q & 1 -> kind[a] = mutex :: q & 2 -> kind[a] = reader :: q & 4 -> kind[a] = writer fi;
			if :: TRIES & (1 << a) -> try[a] = true :: true fi
		}
		select(cancels : 0 .. CANCELS);
		select(others : 0 .. OTHERS);
		for (a : 0 .. N - 1) {
			if :: !PAIR || a > 1 -> ask(a) :: else fi; /* its request may be late; of a pair, the key depends on when it asks */
			run acquisition(a); run net(a);
			if :: LATE -> run sweep(a) :: else fi
		}
		if :: TICKS -> run lease() :: else fi;
		if :: OTHERS || TICKS -> run others_() :: else fi;
		run rest()
	}
}

#if LIVE
#define served(i) [] (state[i] == ENQUEUED -> <> (state[i] == HELD))
#define isLeft(r) (uses[(r) / COPIES] || alive(r))
ltl served { served(0) && served(1) && served(N - 1) }
ltl cleared { <> [] !(isLeft(0) || isLeft(1) || isLeft(R - 2) || isLeft(R - 1)) }
#endif
