package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/connect"
)

// What `etcdlock doctor` looks for in the members of etcd.

// A member is one member of etcd and its answer.
type member struct {
	name   string // "" if no member list has told it
	id     uint64 // 0 if it is unknown
	at     string
	named  bool // by --endpoints
	voter  bool
	status *clientv3.StatusResponse // nil if it did not answer
	took   time.Duration
	err    error  // why it did not
	do     string // what to do about that, if the probe knows it
	hangs  bool   // it did not say anything in time
}

func (m member) answers() bool { return m.status != nil }

func (m member) String() string {
	if m.name != "" {
		return m.name + " at " + connect.Redacted(m.at)
	}
	return "at " + connect.Redacted(m.at)
}

// statusTimeout bounds the request to one member.
const statusTimeout = 2 * time.Second

// ask asks all members for their status: those that --endpoints names and, if one of
// these answers, the others that it knows. voters is how many of them vote.
func (d *doctor) ask(ctx context.Context) (all []member, voters int) {
	for _, endpoint := range d.client.Endpoints() {
		all = append(all, member{at: endpoint, named: true, voter: true})
	}
	d.askEach(ctx, all)
	if !slices.ContainsFunc(all, member.answers) {
		return all, len(all)
	}
	bounded, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	list, err := d.client.MemberList(bounded, clientv3.WithSerializable()) // which needs no leader
	if err != nil {
		return all, len(all) // the user may lack the right
	}
	var others []member
	for _, known := range list.Members {
		i := slices.IndexFunc(all, func(m member) bool {
			return m.id == known.ID || slices.ContainsFunc(known.ClientURLs, func(u string) bool { return connect.Host(u) == connect.Host(m.at) })
		})
		if !known.IsLearner {
			voters++
		}
		switch {
		case i >= 0:
			all[i].name, all[i].id, all[i].voter = known.Name, known.ID, !known.IsLearner
		case len(known.ClientURLs) > 0:
			others = append(others, member{name: known.Name, id: known.ID, at: known.ClientURLs[0], voter: !known.IsLearner})
		default:
			others = append(others, member{name: known.Name, id: known.ID, at: "an unknown address", voter: !known.IsLearner,
				err: errors.New("it was never started")})
		}
	}
	slices.SortFunc(others, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	d.askEach(ctx, others)
	return append(all, others...), voters
}

func (d *doctor) askEach(ctx context.Context, members []member) {
	var wg sync.WaitGroup
	for i := range members {
		m := &members[i]
		if m.err != nil {
			continue
		}
		wg.Go(func() { // ends with statusTimeout
			ctx, cancel := context.WithTimeout(ctx, statusTimeout)
			defer cancel()
			began := time.Now()
			s, err := d.client.Status(ctx, m.at)
			switch {
			case err != nil:
				m.err = err
			case m.id != 0 && s.Header.MemberId != m.id:
				// A member may advertise an address such as localhost, and here another
				// etcd answers at it.
				m.err = errors.New("another etcd answers there")
			default:
				m.id, m.status, m.took = s.Header.MemberId, s, time.Since(began)
			}
		})
	}
	wg.Wait()
	var silent []*member
	var endpoints []string
	for i := range members {
		if m := &members[i]; errors.Is(m.err, context.DeadlineExceeded) {
			silent, endpoints = append(silent, m), append(endpoints, m.at)
		}
	}
	for i, p := range d.etcd.ProbeAll(ctx, endpoints) { // the error of gRPC says only that time was up
		what := p.What
		if what == "" {
			what = fmt.Sprintf("connected, but there was no answer within %v", statusTimeout)
		}
		silent[i].err, silent[i].do, silent[i].hangs = errors.New(what), p.Do, p.What == ""
	}
}

// members says what is wrong with the members. unread is why the queue could not be
// read. If it is nil, more than half of the members are well.
func (d *doctor) members(ctx context.Context, unread error) error {
	all, of := d.ask(ctx)
	answer, led := make(map[uint64]bool), false // by ID, because two endpoints may lead to one member
	for _, m := range all {
		if m.answers() && m.voter {
			answer[m.id], led = true, led || m.status.Leader != 0
		}
	}
	n := len(answer)
	switch {
	case unread == nil:
	case !slices.ContainsFunc(all, member.answers):
		return d.etcd.Explain(all[0].err)
	case !quorum(n, of):
		d.attention(fmt.Sprintf("%d of %d are needed: start the others, or mend the network between them and from here", of/2+1, of),
			"%s, no quorum: locks can neither be taken nor renewed", answering(n, of))
	case !led:
		d.attention("look at the network between them, and at their logs and disks",
			"%s, but they have no leader: locks can neither be taken nor renewed", answering(n, of))
	default:
		d.attention("look at the members' logs and disks, and run this again", "the queue can't be read: %s", line(unread))
	}
	full := d.alarms(all)
	for _, m := range all {
		d.member(m, unread, full, led)
	}
	d.versions(all, of)
	return nil
}

// quorum reports whether n of the members are more than half.
func quorum(n, of int) bool { return 2*n > of }

func answering(n, of int) string {
	if n == 1 {
		return fmt.Sprintf("1 of %d members answers", of)
	}
	return fmt.Sprintf("%d of %d members answer", n, of)
}

// member says what is wrong with a member. led says that some other one knows a leader: else that was said of all of them.
func (d *doctor) member(m member, unread error, full, led bool) {
	do := "see to it that it comes back"
	if unread == nil {
		do = "locks are taken and renewed while more than half of the members are well; " + do
	}
	switch {
	case m.do != "":
		do = m.do
	case m.hangs:
		do = "stop it if it hangs (kill -9): until then what clients have sent to it has no answer, each Held.Txn among it; " + do
	}
	switch s := m.status; {
	case errors.Is(m.err, rpctypes.ErrPermissionDenied): // of etcd 3.6.0 and some later ones
		d.note("the members tell only a user with the role root of their state: whether one is full or alone is not known")
	case s == nil && m.named:
		d.attention(do, "etcd's member %v does not answer: %v", m, m.err)
	case s == nil && unread == nil:
		d.note("etcd's member %v can't be reached from here, and --endpoints does not name it: %v", m, m.err)
	case s == nil:
		d.attention(do, "etcd's member %v does not answer, and --endpoints does not name it: %v", m, m.err)
	case s.Leader == 0 && (led || unread == nil):
		d.attention("it does not see the other members: look at its network and log", "etcd's member %v knows no leader", m)
	case s.DbSizeQuota > 0 && s.DbSize > s.DbSizeQuota/10*9 && !full: // else alarms has said that
		d.attention(fmt.Sprintf("free space before it is full and refuses every lock: etcdctl compact --physical %d, then etcdctl defrag for one member after the other. %s", s.Header.Revision, liveData),
			"etcd's member %v has used %s MiB of %s, and %s of it hold keys and their history", m, mib(s.DbSize), mib(s.DbSizeQuota), mib(s.DbSizeInUse))
	}
	if m.took > 500*time.Millisecond {
		d.note("etcd's member %v took %v to answer", m, m.took.Round(time.Millisecond))
	}
}

// liveData is what to do when freeing space does not help.
const liveData = "If IN USE (etcdctl endpoint status -w table) stays near the quota, current keys fill it: delete keys, which a full etcd allows, or start the members with a larger --quota-backend-bytes"

// alarms lists etcd's alarms, and reports whether etcd is full. Every member reports the alarms of all members.
func (d *doctor) alarms(all []member) (full bool) {
	alarms, revision := make(map[string]bool), int64(0)
	for _, m := range all {
		if m.status == nil {
			continue
		}
		revision = max(revision, m.status.Header.Revision)
		for _, e := range m.status.Errors {
			if !strings.Contains(e, "no leader") { // members has said that already
				alarms[strings.TrimSpace(e)] = true
			}
		}
	}
	for _, a := range slices.Sorted(maps.Keys(alarms)) {
		switch {
		case strings.Contains(a, "alarm:NOSPACE") && full:
		case strings.Contains(a, "alarm:NOSPACE"):
			full = true
			d.attention(fmt.Sprintf("free space, then lift the alarm: etcdctl compact --physical %d; etcdctl defrag for one member after the other; etcdctl alarm disarm. Repeat it once if the alarm comes back: the members compact in the background. %s", revision, liveData),
				"etcd is out of space (alarm NOSPACE; %s): it refuses every attempt to take a lock", inUse(all))
		case strings.Contains(a, "alarm:CORRUPT"):
			d.attention("etcdctl alarm list names it: stop it, remove it from the cluster, and add it anew with empty data", "a member of etcd has other data than the rest (%s)", plain(a))
		default:
			d.attention("see etcdctl alarm list: etcd may refuse locks until this is mended", "etcd says: %s", plain(a))
		}
	}
	return full
}

// mib writes a size in MiB. A quota may be a few of them, so one decimal counts.
func mib(bytes int64) string { return fmt.Sprintf("%.1f", float64(bytes)/(1<<20)) }

// inUse says how full the fullest of the members that answer is. Before etcd 3.6 they do not tell their quota.
func inUse(all []member) string {
	var used, quota int64
	for _, m := range all {
		if m.answers() && m.status.DbSizeInUse >= used {
			used, quota = m.status.DbSizeInUse, m.status.DbSizeQuota
		}
	}
	if quota == 0 {
		return mib(used) + " MiB are in use"
	}
	return mib(used) + " MiB of " + mib(quota) + " are in use"
}

func (d *doctor) versions(all []member, of int) {
	versions := make(map[string]map[uint64]bool)
	for _, m := range all {
		if m.status == nil {
			continue
		}
		if versions[m.status.Version] == nil {
			versions[m.status.Version] = make(map[uint64]bool)
		}
		versions[m.status.Version][m.id] = true
	}
	var facts []string
	for v, at := range versions {
		facts = append(facts, fmt.Sprintf("%s (%d of %d members)", v, len(at), of))
	}
	slices.Sort(facts)
	if len(facts) > 1 {
		d.note("the members run different versions of etcd: %s", strings.Join(facts, ", "))
	} else if len(facts) == 1 {
		d.note("etcd %s", facts[0])
	}
}
