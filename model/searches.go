package main

// A search is one of everything that can happen within its bounds; see bounds.pml.
type search struct {
	Name   string
	File   string // the model, lock if it is empty
	Bounds string
	// Formula, if there is one, is searched for cycles in which every process that can
	// go on does (weak fairness); otherwise all assertions are.
	Formula string
}

// The models.
const (
	lock    = "lock.pml"    // of one name
	multi   = "multi.pml"   // of several names at once
	renew   = "renew.pml"   // of the renewals of a lease
	restore = "restore.pml" // of a snapshot that is restored
	adopt   = "adopt.pml"   // of a lease that goes from one process to the next
)

var searches = []search{
	{Name: "three readers or writers, which may downgrade", Bounds: "-DN=3 -DKINDS=666"},
	{Name: "three mutexes or readers, each a Try or not", Bounds: "-DN=3 -DKINDS=333 -DTRIES=7"},
	{Name: "three mutexes, a bad network", Bounds: "-DN=3 -DFAULTS=1 -DCANCELS=1"},
	{Name: "a writer between two readers, a bad network", Bounds: "-DN=3 -DKINDS=242 -DFAULTS=1 -DCANCELS=1"},
	{Name: "two of any kind, each a Try or not, a worse network", Bounds: "-DN=2 -DKINDS=77 -DTRIES=3 -DFAULTS=2 -DCANCELS=1"},
	{Name: "three with a guarded transaction, a bad network", Bounds: "-DN=3 -DUSES=1 -DFAULTS=1"},
	{Name: "three sessions, one of them with two mutexes", Bounds: "-DN=4 -DPAIR=1"},
	{Name: "two sessions, one with two mutexes, a bad network", Bounds: "-DN=3 -DPAIR=1 -DFAULTS=1 -DCANCELS=1"},
	{Name: "two sessions, one with two, and a guarded transaction, a bad network", Bounds: "-DN=3 -DPAIR=1 -DUSES=1 -DFAULTS=1"},
	{Name: "two sessions, one with two, mutexes or readers, and a guarded transaction", Bounds: "-DN=3 -DPAIR=1 -DKINDS=333 -DUSES=1"},
	{Name: "two sessions with writers that downgrade, one with two", Bounds: "-DN=3 -DPAIR=1 -DKINDS=474"},
	{Name: "two sessions, one with two, and a writer that downgrades and stays, a bad network", Bounds: "-DN=3 -DPAIR=1 -DKINDS=224 -DFAULTS=1 -DSTAYS=1"},
	{Name: "two of one session, of any kind, and two guarded transactions", Bounds: "-DN=2 -DPAIR=1 -DKINDS=77 -DUSES=2"},
	{Name: "a writer between two readers, and somebody removes an entry or a lease", Bounds: "-DN=3 -DKINDS=242 -DOTHERS=1"},
	{Name: "two sessions, one with two, and somebody removes an entry or a lease", Bounds: "-DN=3 -DPAIR=1 -DOTHERS=1"},
	{Name: "two of any kind, a bad network, and somebody removes an entry or a lease", Bounds: "-DN=2 -DKINDS=77 -DFAULTS=1 -DOTHERS=1"},
	{Name: "two of one session, of any kind, a guarded transaction, and somebody removes an entry or a lease", Bounds: "-DN=2 -DPAIR=1 -DKINDS=77 -DUSES=1 -DOTHERS=1"},
	{Name: "three, and a lease that is renewed or expires", Bounds: "-DN=3 -DTICKS=4"},
	{Name: "two of one session, a guarded transaction, and a lease that is renewed or expires", Bounds: "-DN=2 -DPAIR=1 -DUSES=1 -DTICKS=4"},
	{Name: "two sessions, one with two, and writes that come when nobody looks any more", Bounds: "-DN=3 -DPAIR=1 -DFAULTS=1 -DLATE=1"},
	{Name: "two of one session that may give up, and such writes", Bounds: "-DN=2 -DPAIR=1 -DKINDS=33 -DFAULTS=1 -DCANCELS=1 -DLATE=1"},

	{Name: "several names: three of two names, each to read or to write", File: multi, Bounds: "-DN=3 -DM=2"},
	{Name: "several names: two of one session that may give up", File: multi, Bounds: "-DN=3 -DM=2 -DPAIR=1 -DCANCELS=1"},
	{Name: "several names: two of one session, and somebody removes a part", File: multi, Bounds: "-DN=3 -DM=2 -DPAIR=1 -DOTHERS=1"},
	{Name: "several names: three names", File: multi, Bounds: "-DN=3 -DM=3"},

	{Name: "renewals: four that overtake each other", File: renew, Bounds: "-DPROXY=0"},
	{Name: "renewals: four, and a proxy that answers all that are open", File: renew, Bounds: "-DPROXY=1"},

	{Name: "restore: two mutexes of one session and one of another", File: restore, Bounds: "-DN=3"},
	{Name: "restore: the same, and the revision is raised", File: restore, Bounds: "-DN=3 -DBUMP=20"},

	{Name: "adoption: a lock that two calls adopt beside a mutex of its session and one of another", File: adopt, Bounds: "-DCOPIES=1"},
	{Name: "adoption: the same, and each request is sent twice", File: adopt, Bounds: "-DCOPIES=2"},

	{Name: "liveness: three mutexes", Bounds: "-DN=3", Formula: "served"},
	{Name: "liveness: two of any kind, a bad network", Bounds: "-DN=2 -DKINDS=77 -DFAULTS=1", Formula: "served"},
	{Name: "liveness: two sessions, one with two", Bounds: "-DN=3 -DPAIR=1", Formula: "served"},
	{Name: "liveness: what is late, two mutexes", Bounds: "-DN=2 -DFAULTS=2 -DCANCELS=1", Formula: "cleared"},
	{Name: "liveness: what is late, two of one session", Bounds: "-DN=2 -DPAIR=1 -DFAULTS=1 -DCANCELS=1", Formula: "cleared"},
}
