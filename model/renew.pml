/*
 * How long a session may trust its lease, for the model checker Spin: A attempts to renew the lease, which may overtake
 * each other, and a proxy between client and etcd that answers all open attempts with one reply, as `etcd grpc-proxy` does.
 * See lock.pml for the rest of the protocol.
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef A
#define A 4 /* attempts to renew, at most 4 */
#endif
#ifndef T
#define T 8 /* how long the clock runs */
#endif
#ifndef PROXY
#define PROXY 0 /* 1: a proxy is between, which asks etcd itself and has at most one request of its own on its way */
#endif
#define ok(m) (MUTANT != m) /* the line is there: mutant m is without it */
#define TTL 3
#define name(i) (65 + (i)) /* A, B, ... */

#define OPEN 1     /* sent, and not answered yet as far as the session knows */
#define ANSWERED 2
byte now, expires = TTL, trusted = TTL; /* etcd keeps the lease until expires; the session trusts it until trusted */
bool leased = true;
byte state[A], sent[A], since[A]; /* since: when the earliest attempt was sent that was open when this one was sent */
bool going[A];   /* the attempt is on its way to etcd, or to the proxy */
bool waits[A];   /* the proxy has it, and answers it with the next reply of etcd */
bool replied[A]; /* the reply is on its way to the session */
byte asking;     /* of the proxy's own request: 1 on its way, 2 its reply is */

#define earlier(j, i) (j < A && state[j] == OPEN && sent[j] < since[i])

#define maxOf(v, w) ((v) > (w) -> (v) : (w))
#define counted(i) (ok(29) -> since[i] : sent[i])
inline renew() { expires = now + TTL; printf("etcd: at %d the lease is renewed until %d\n", now, expires) }

/* An attempt has a reply: the lease was renewed at some time after the counted one. */
proctype attempt(byte i) {
	byte j;
end0:	atomic { now < trusted && (i == 0 || state[i - 1]) ->
		state[i] = OPEN; sent[i] = now; since[i] = now; going[i] = true;
		for (j : 0 .. A - 1) { if :: ok(30) && earlier(j, i) -> since[i] = sent[j] :: else fi }
		printf("%c: the session sends a renewal at %d\n", name(i), now) }
end1:	atomic { replied[i] ->
		for (j : 0 .. A - 1) { if :: !ok(30) && earlier(j, i) -> since[i] = sent[j] :: else fi }
		state[i] = ANSWERED; replied[i] = false;
		if
		:: now < trusted -> trusted = maxOf(trusted, counted(i) + TTL); printf("%c: at %d the session counts on the lease until %d\n", name(i), now, trusted)
		:: else
		fi }
}

proctype net(byte i) {
end:	do
	:: atomic { !PROXY && going[i] && leased -> going[i] = false; renew(); replied[i] = true }
	:: atomic { PROXY && going[i] -> going[i] = false; waits[i] = true }
	od
}

proctype proxy() {
	byte j;
end:	do
	:: atomic { !asking && (waits[0] || waits[1] || waits[A - 2] || waits[A - 1]) -> asking = 1; printf("net: the proxy asks etcd\n") }
	:: atomic { asking == 1 && leased -> asking = 2; renew() }
	:: atomic { asking == 2 -> asking = 0; printf("net: the proxy answers all that is open, at %d\n", now);
		for (j : 0 .. A - 1) { if :: waits[j] -> waits[j] = false; replied[j] = true :: else fi } }
	od
}

proctype clock() {
end:	do
	:: atomic { now < T -> now++; printf("clock: it is %d\n", now) }
	:: atomic { leased && now >= expires -> leased = false; printf("etcd: at %d the lease ends, and the next one has the lock\n", now);
		assert(now >= trusted) } /* I4: etcd's lease outlives the deadline */
	od
}

proctype rest() { timeout -> assert(now == T) } /* served: the clock runs to the end */

init {
	byte j;
	atomic {
		for (j : 0 .. A - 1) { run attempt(j); run net(j) }
		if :: PROXY -> run proxy() :: else fi;
		run clock(); run rest()
	}
}
