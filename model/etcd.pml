/*
 * Etcd and the network, for lock.pml: what a request of an acquisition does when etcd
 * carries it out. That is once, at any time, or never: the request or its reply is lost.
 */

/* If(no such key) Then(read the queue, Put) Else(Get). The reply is the entry; the queue it shows is that of this revision. */
inline carryOutPut(i) {
	top = NONE; a = 0; /* who has the key; whether a Try is blocked */
	for (r : 0 .. R - 1) {
		if :: alive(r) && sameKey(r, i) -> top = r :: else fi;
		if :: alive(r) && (exclusive(i) || !rec[r].x) && (ok(3) || state[owner(r)] == HELD) -> a = 1 :: else fi
	}
	if
	:: !leased[ses(i)] -> a = NO_LEASE
	:: leased[ses(i)] && top != NONE -> a = (owner(top) == i -> top + 1 : TAKEN)
	:: leased[ses(i)] && top == NONE && try[i] && a -> a = LOCKED
	:: else ->
		r = i * COPIES;
		do :: rec[r].c -> r++ :: else -> break od;
		assert(r < (i + 1) * COPIES); /* of the model: there is room */
		rev++;
		rec[r].c = rev; rec[r].n = key[i]; rec[r].x = (exclusive(i) -> 0 : rev); rec[r].s = (shared(i) -> 0 : rev);
		a = r + 1;
		printf("etcd: at %d the entry of %c is written\n", rev, name(i));
		for (j : 0 .. N - 1) {
			assert(LATE || j == i || !uses[j] || ses(j) != ses(i) || key[j] != key[i]) /* I6: a key is used anew only when its last use is settled */
		}
		assert(LATE || uses[i]) /* I6: a key is free only when no write of it is to come */
	fi
}

/* If(create revision = victim) Then(Delete). I5: an entry is its key and its create revision. */
inline carryOutDelete(i) {
	for (r : 0 .. R - 1) {
		if
		:: alive(r) && (ok(17) -> (owner(r) == i && rec[r].c == victim[i]) : sameKey(r, i)) ->
			assert(MUTANT || owner(r) == i); /* I5: no request touches another entry */
			rev++;
			rec[r].x = (rec[r].x -> rec[r].x : rev); rec[r].s = (rec[r].s -> rec[r].s : rev);
			printf("etcd: at %d the entry of revision %d is deleted, for %c\n", rev, rec[r].c, name(i))
		:: else
		fi
	}
	a = DONE
}

/* A downgrade: If(the shared key at its revision) Then(Delete the exclusive one at its). */
inline carryOutDown(i) {
	for (r : 0 .. R - 1) {
		if
		:: xAt(r, rev) && (ok(19) -> (r == me[i] && sAt(r, rev)) : sameKey(r, i)) ->
			rev++; rec[r].x = rev;
			printf("etcd: at %d the exclusive key of revision %d is deleted, for %c: downgraded\n", rev, rec[r].c, name(i));
			if :: MUTANT != 28 :: MUTANT == 28 -> told[i] = true :: MUTANT == 28 && faults -> faults--; printf("net: the reply to %c is lost\n", name(i)) fi
		:: else
		fi
	}
}

/* A guarded transaction: If(create revision = its token) Then(...). */
inline carryOutTxn(i) {
	a = 0;
	for (r : 0 .. R - 1) {
		if :: (ok(18) -> r == me[i] : sameKey(r, i)) && (txns[i] == 1 -> xAt(r, rev) : sAt(r, rev)) -> a = 1 :: else fi
	}
	printf("etcd: %c's guarded transaction is carried out: %d (1: it writes)\n", name(i), a);
	for (j : 0 .. N - 1) {
		assert(!a || !had[j] || rv(j) <= rv(i) || (txns[i] == 2 && !exclusive(j))) /* fence: no transaction of a former holder writes after the next grant */
	}
	txns[i] = 0
}

inline answer(i, what) {
	if
	:: call[i] == what && !reply[i] -> reply[i] = a
	:: call[i] == what && !reply[i] && faults -> faults--; printf("net: the reply to %c is lost\n", name(i))
	:: call[i] != what || reply[i]
	fi
}

proctype net(byte i) {
end:	do
	:: atomic { puts[i] -> puts[i]--; carryOutPut(i); answer(i, PUT) }
	:: atomic { deletes[i] -> deletes[i]--; carryOutDelete(i); answer(i, DELETE) }
	:: atomic { downs[i] -> downs[i]--; carryOutDown(i) }
	:: atomic { txns[i] -> carryOutTxn(i) }
	:: atomic { puts[i] && faults -> faults--; puts[i]--; printf("net: a request of %c is lost\n", name(i)) }
	:: atomic { deletes[i] && faults -> faults--; deletes[i]--; printf("net: a request of %c is lost\n", name(i)) }
	od
}
