// Package promlock exports metrics of etcdlock's locks to Prometheus. It is a module of its own:
// go get github.com/etcdlock/etcdlock/promlock
//
//	metrics := promlock.New()
//	prometheus.MustRegister(metrics)
//	locks := etcdlock.New(client, etcdlock.WithHooks(metrics.Hooks()))
//
// One [Collector] serves all sessions of a process. Its metrics are:
//
//	etcdlock_wait_seconds{name,mode,outcome}      histogram: how long calls waited, by how the wait ended
//	etcdlock_hold_seconds{name,mode}              histogram: how long locks were held
//	etcdlock_lost_total{name,mode,cause}          locks that were lost while they were held
//	etcdlock_waiting{name,mode}                   entries of this process that wait in a queue now
//	etcdlock_held{name,mode}                      locks that this process holds now
//	etcdlock_oldest_wait_seconds{name,mode}       how long the oldest of those entries has been in the queue
//	etcdlock_oldest_hold_seconds{name,mode}       how long the oldest of those locks has been held
//	etcdlock_sessions                             sessions that are alive
//	etcdlock_session_ttl_left_seconds             time until the earliest deadline of these sessions
//	etcdlock_session_ttl_seconds                  TTL of the session with that deadline
//	etcdlock_sessions_ended_total{cause}          sessions that ended
//	etcdlock_session_renewal_seconds              histogram: round trips of lease renewals
//	etcdlock_session_renewal_failures_total       attempts to renew a lease that failed or were not answered in time
//
// The label mode is "exclusive", "shared" or "elector": an Elector waits for as long as another one leads, so an old
// wait of its mode is no alarm. The label outcome is:
//
//	granted           the lock was granted
//	locked            TryLock or TryRLock found the lock taken
//	timeout           the deadline of the caller's ctx passed
//	cancelled         the caller's ctx or its Ticket was cancelled
//	session_expired   the session was lost
//	session_closed    the session was closed
//	removed           somebody else removed the entry
//	error             etcd refused the request
//
// The label cause is one of session_expired, session_closed and removed.
//
// docs/operations.md says what to watch and what to do, and deploy/monitoring has
// alerting rules and a dashboard for these metrics.
//
// # The length of a queue
//
// etcdlock_waiting counts what this process knows, without a request, so it is
// right while etcd is away too. The sum over all processes is their queue. If that
// sum is above zero and the sum of etcdlock_held is zero, no process that is scraped
// holds the lock: the holder died less than a TTL ago, or is another kind of client.
// [Queues] asks etcd for the whole queue, whoever is in it.
//
// # What labels cost
//
// The histograms have classic buckets, so each name makes some 15 series for each
// outcome of a wait and 20 more, as long as the process lives. Therefore only the
// first 100 names get a label of their own, and all later ones share name="other".
// A service that makes lock names from data, such as one for each order, uses
// [WithName] to map them to a few.
//
// # Histograms
//
// Each histogram is native and has classic buckets too. A Prometheus that scrapes
// native histograms (scrape_native_histograms in version 3, a feature flag in
// version 2) stores those, with an error of about 5 % in quantiles, and drops the
// classic buckets. Any other Prometheus stores the classic buckets: two for each
// power of ten from 1 ms to 300 s. [WithBuckets] changes or removes them.
package promlock
