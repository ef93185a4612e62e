package history

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var epoch = time.Now()

// at is a moment of a made-up history.
func at(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }

// script makes up a history of etcd: a revision for each line.
type script struct {
	log     *Log
	rev     int64
	created map[string]int64
}

func newScript() *script { return &script{NewLog(LockPrefix), 1, map[string]int64{}} }

// put creates entries in one transaction, and returns their token.
func (s *script) put(lease int64, keys ...string) int64 {
	s.rev++
	var events []*clientv3.Event
	for _, key := range keys {
		s.created[key] = s.rev
		events = append(events, event(clientv3.EventTypePut, key, "", lease, s.rev, s.rev))
	}
	s.log.Add(events, at(int(s.rev)))
	return s.rev
}

// del deletes keys in one transaction, heard of at as many ms as its revision is.
func (s *script) del(keys ...string) int64 { return s.delAt(int(s.rev)+1, keys...) }

// delAt is del heard of at another time.
func (s *script) delAt(ms int, keys ...string) int64 {
	s.rev++
	var events []*clientv3.Event
	for _, key := range keys {
		events = append(events, event(clientv3.EventTypeDelete, key, "", 0, 0, s.rev))
	}
	s.log.Add(events, at(ms))
	return s.rev
}

// write is a guarded write.
func (s *script) write(worker int, key string, token int64) {
	s.rev++
	value, _ := json.Marshal(SetValue{Worker: worker, Key: key, Token: token})
	s.log.Add([]*clientv3.Event{event(clientv3.EventTypePut, SetPrefix+"s", string(value), 0, 2, s.rev)}, at(int(s.rev)))
}

func event(what mvccpb.Event_EventType, key, value string, lease, created, rev int64) *clientv3.Event {
	return &clientv3.Event{Type: what, Kv: &mvccpb.KeyValue{
		Key: []byte(key), Value: []byte(value), Lease: lease, CreateRevision: created, ModRevision: rev,
	}}
}

func TestCheckGrants(t *testing.T) {
	const a, b, ra, rb = "lock/x/a", "lock/x/b", "lock/x/ra", "lock/x/rb"
	for _, tc := range []struct {
		name string
		run  func(s *script) []Claim
		want []string // what the problems say; nothing: there is none
	}{
		{"one after the other", func(s *script) []Claim {
			ta, tb := s.put(1, a), s.put(2, b)
			s.write(1, a, ta)
			s.write(1, a, ta)
			s.del(a)
			s.write(2, b, tb)
			return nil
		}, nil},
		{"a double grant", func(s *script) []Claim {
			ta, tb := s.put(1, a), s.put(2, b)
			s.write(1, a, ta)
			s.write(2, b, tb)
			s.write(2, b, tb)
			return nil
		}, []string{"worker 2, by lock/x/b (created at 3), acted at revision 5: lock/x/a (created at 2), which has acted before, still held the lock"}},
		{"a double grant by reading", func(s *script) []Claim {
			ta, tb := s.put(1, a), s.put(2, b)
			s.write(1, a, ta)
			return []Claim{{2, b, tb, s.rev}}
		}, []string{"still held the lock"}},
		{"a double grant to readers is none", func(s *script) []Claim {
			ta, tb := s.put(1, ra), s.put(2, rb)
			return []Claim{{2, rb, tb, s.rev}, {1, ra, ta, s.rev}}
		}, nil},
		{"a reader among a writer's", func(s *script) []Claim {
			ta, tb := s.put(1, a, "lock/x/ra"), s.put(2, rb)
			s.write(1, a, ta)
			return []Claim{{2, rb, tb, s.rev}}
		}, []string{"still held the lock"}},
		{"a writer among readers", func(s *script) []Claim {
			ta, tb, tc := s.put(1, ra), s.put(2, rb), s.put(3, a)
			s.del(ra)
			s.write(3, a, tc)
			return []Claim{{1, ra, ta, tc}, {2, rb, tb, tc}}
		}, []string{"lock/x/rb (created at 3), which has acted before, still held the lock"}},
		{"a reader after a downgrade", func(s *script) []Claim {
			ta, tb := s.put(1, a, ra), s.put(2, rb)
			s.write(1, a, ta)
			s.del(a)
			return []Claim{{1, ra, ta, s.rev}, {2, rb, tb, s.rev}}
		}, nil},
		{"a reader before the downgrade", func(s *script) []Claim {
			ta, tb := s.put(1, a, ra), s.put(2, rb)
			s.write(1, a, ta)
			before := s.rev
			s.del(a)
			return []Claim{{2, rb, tb, before}}
		}, []string{"still held the lock"}},
		{"a writer after a downgrade", func(s *script) []Claim {
			s.put(1, a, ra)
			tb := s.put(2, b)
			s.del(a)
			return []Claim{{2, b, tb, s.rev}}
		}, []string{"it passed lock/x/ra (created at 2)"}},
		{"the order of arrival turned round", func(s *script) []Claim {
			s.put(1, a)
			tb := s.put(2, b)
			s.write(2, b, tb)
			s.del(a)
			return nil
		}, []string{"it passed lock/x/a (created at 2), which was in the queue before it"}},
		{"one of its own session that never acted is passed", func(s *script) []Claim {
			s.put(1, a)
			tb := s.put(1, b)
			s.write(1, b, tb)
			s.del(a)
			return nil
		}, nil},
		{"a double grant inside a session", func(s *script) []Claim {
			ta, tb := s.put(1, a), s.put(1, b)
			s.write(1, a, ta)
			s.write(1, b, tb)
			return nil
		}, []string{"lock/x/a (created at 2), which has acted before, still held the lock"}},
		{"one that its own session has passed acts", func(s *script) []Claim {
			ta, tb := s.put(1, a), s.put(1, b)
			s.write(1, b, tb)
			s.write(1, a, ta)
			return nil
		}, []string{"lock/x/b (created at 3), which is behind it, has acted before"}},
		{"the order of keys is no order", func(s *script) []Claim {
			tb, ta := s.put(2, b), s.put(1, a)
			s.write(2, b, tb)
			s.del(b)
			s.write(1, a, ta)
			return nil
		}, nil},
		{"a stale write", func(s *script) []Claim {
			ta := s.put(1, a)
			s.del(a)
			s.write(1, a, ta)
			return nil
		}, []string{"its entry was not in the queue, it was there from 2 to 3"}},
		{"a stale write, the key in use again", func(s *script) []Claim {
			ta := s.put(1, a)
			s.del(a)
			s.put(2, a)
			s.write(1, a, ta)
			return nil
		}, []string{"its entry was not in the queue"}},
		{"a read before the entry was there", func(s *script) []Claim {
			ta := s.put(1, a)
			return []Claim{{1, a, ta, ta - 1}}
		}, []string{"its entry was not in the queue"}},
		{"a token that etcd did not give", func(s *script) []Claim {
			ta := s.put(1, a)
			s.write(1, a, ta+7)
			return nil
		}, []string{"etcd never had such an entry"}},
		{"locks don't mix, nested ones included", func(s *script) []Claim {
			s.put(1, a)
			ty, tn := s.put(2, "lock/y/b"), s.put(3, "lock/x/y/c")
			s.write(2, "lock/y/b", ty)
			s.write(3, "lock/x/y/c", tn)
			return nil
		}, nil},
		{"numbered keys are entries", func(s *script) []Claim {
			s.put(1, "lock/x/a-1f")
			tb := s.put(2, "lock/x/ra-2")
			return []Claim{{1, "lock/x/ra-2", tb, s.rev}}
		}, []string{"it passed lock/x/a-1f"}},
		{"a gap", func(s *script) []Claim {
			s.put(1, a)
			s.rev += 2
			s.del(a)
			return nil
		}, []string{"etcd's history has a gap from revision 2 to 5"}},
		{"a key that is no entry", func(s *script) []Claim {
			s.put(1, "lock/x/-1")
			return nil
		}, []string{"lock/x/-1 is no entry"}},
		{"an entry that is written over", func(s *script) []Claim {
			s.put(1, a)
			s.rev++
			s.log.Add([]*clientv3.Event{event(clientv3.EventTypePut, a, "", 1, 2, s.rev)}, at(0))
			return nil
		}, []string{"lock/x/a (created at 2) was written again at 3"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newScript()
			claims := tc.run(s)
			got, broken := s.log.CheckGrants(claims)
			require.Len(t, got, len(tc.want), got)
			for i := range got {
				require.Contains(t, got[i], tc.want[i])
			}
			again, _ := s.log.CheckGrants(claims)
			require.Equal(t, got, again, "the check changes nothing")
			acted := slices.ContainsFunc(got, func(p string) bool { return strings.HasPrefix(p, "worker") })
			require.Equal(t, acted, len(broken) > 0, "porcupine says the same")
		})
	}
}

// A long history is cut, wherever that may be, and only the stretch that is wrong is shown.
func TestCheckGrants_Long(t *testing.T) {
	s := newScript()
	const a, b = "lock/x/a", "lock/x/b"
	for range 400 {
		ta, tb := s.put(1, a), s.put(2, b)
		s.write(1, a, ta)
		s.del(a)
		s.write(2, b, tb)
		s.del(b)
	}
	problems, broken := s.log.CheckGrants(nil)
	require.Empty(t, problems)
	require.Empty(t, broken)
	s.put(1, a)
	tb := s.put(2, b)
	s.write(2, b, tb)
	problems, broken = s.log.CheckGrants(nil)
	require.Len(t, problems, 1)
	require.Len(t, broken, 1)
	require.Equal(t, "lock/x, revisions 2002 to 2404,", broken[0].What)
}

// An entry may be written again with the same lease and nonce: its owner publishes a value.
func TestLogAllowsSetValue(t *testing.T) {
	const nonce = `{"nonce":"n.1"}`
	for name, tc := range map[string]struct {
		first, then string
		lease       int64
		want        int // problems
	}{
		"published":         {nonce, `{"nonce":"n.1","value":"v"}`, 1, 0},
		"another nonce":     {nonce, `{"nonce":"n.2"}`, 1, 1},
		"no nonce any more": {nonce, "v", 1, 1},
		"never a nonce":     {"v", "w", 1, 1},
		"another lease":     {nonce, nonce, 2, 1},
		"no lease any more": {nonce, nonce, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			l := NewLog(LockPrefix)
			l.Add([]*clientv3.Event{
				event(clientv3.EventTypePut, "lock/x/a", tc.first, 1, 2, 2),
				event(clientv3.EventTypePut, "lock/x/a", tc.then, tc.lease, 2, 3),
			}, at(0))
			problems, _ := l.CheckGrants(nil)
			require.Len(t, problems, tc.want, problems)
			require.Len(t, l.Live(), 1, "it is one entry")
		})
	}
}

// Several observers tell the same; whoever is first counts, and nothing counts twice.
func TestLogPassesOverWhatItHas(t *testing.T) {
	s := newScript()
	ta := s.put(1, "lock/x/a")
	gone := s.del("lock/x/a")
	s.log.Add([]*clientv3.Event{
		event(clientv3.EventTypePut, "lock/x/a", "", 1, ta, ta),
		event(clientv3.EventTypeDelete, "lock/x/a", "", 0, 0, gone),
		event(clientv3.EventTypePut, "lock/x/a", "", 1, gone+1, gone+1),
		event(clientv3.EventTypePut, "lock/x/ra", "", 1, gone+1, gone+1),
	}, at(1000))
	problems, _ := s.log.CheckGrants(nil)
	require.Empty(t, problems)
	require.Equal(t, gone+1, s.log.Revision())
	require.Equal(t, at(int(gone)), s.log.entries[0].GoneSeen)
	require.Len(t, s.log.Live(), 2, "two keys of one revision")
}

func TestCheckValid(t *testing.T) {
	s := newScript()
	const a, b, c = "lock/x/a", "lock/x/b", "lock/x/c"
	ta, tb, tc := s.put(1, a), s.put(2, b), s.put(3, c)
	sample := func(key string, token int64, ms int) Sample { return Sample{1, key, token, at(ms)} }
	all := []Sample{sample(a, ta, 900), sample(b, tb, 900), sample(c, tc, 900)}
	problems, _ := s.log.CheckValid(all)
	require.Empty(t, problems, "they are there")

	s.log.WillRemove(Entry{Key: b, Created: tb - 1}) // another one
	s.log.WillRevoke(3)
	goneA, goneB, goneC := s.del(a), s.del(b), s.del(c)
	problems, excused := s.log.CheckValid([]Sample{sample(a, ta, int(goneA)), sample(b, tb, int(goneB)), sample(c, tc, int(goneC))})
	require.Empty(t, problems, "asked before the news came: nothing is proved")
	require.Zero(t, excused)

	problems, excused = s.log.CheckValid(append(all, sample(a, ta, 100)))
	require.Len(t, problems, 2, "one for each hold")
	require.Contains(t, problems[0], "its hold by lock/x/a (created at 2) was valid, 895ms or more after it was gone (at revision 5)")
	require.Contains(t, problems[1], "lock/x/b")
	require.Equal(t, at(900).Sub(at(int(goneC))), excused)

	problems, _ = s.log.CheckValid([]Sample{sample(a, ta+1, 1)})
	require.Len(t, problems, 1)
	require.Contains(t, problems[0], "etcd never had")
}

func TestInterference(t *testing.T) {
	s := newScript()
	ta := s.put(1, "lock/x/a")
	s.put(2, "lock/x/b")
	s.log.WillRemove(s.log.Live()[0])
	s.log.WillRevoke(3)
	require.True(t, s.log.Interfered(1))
	require.False(t, s.log.Interfered(2))
	require.True(t, s.log.Interfered(3))
	s.del("lock/x/a")
	problems, excused := s.log.CheckValid([]Sample{{1, "lock/x/a", ta, at(1004)}})
	require.Empty(t, problems)
	require.Equal(t, time.Second, excused)
}

func TestCheckSets(t *testing.T) {
	add := func(element, from, to int) SetOp {
		return SetOp{Worker: 1, Set: "set/x", Add: true, Element: element, Call: at(from), Return: at(to)}
	}
	unknown := func(element, from, to int) SetOp {
		o := add(element, from, to)
		o.Unknown = true
		return o
	}
	read := func(from, to int, elements ...int) SetOp {
		o := SetOp{Worker: 2, Set: "set/x", Call: at(from), Return: at(to)}
		for _, e := range elements {
			o.Elements = o.Elements.With(e)
		}
		return o
	}
	for _, tc := range []struct {
		name string
		ops  []SetOp
		want bool
	}{
		{"in order", []SetOp{read(0, 1), add(0, 2, 3), read(4, 5, 0), add(63, 6, 7), read(8, 9, 0, 63)}, true},
		{"at once, seen", []SetOp{add(0, 0, 10), read(4, 5, 0)}, true},
		{"at once, not seen", []SetOp{add(0, 0, 10), read(4, 5)}, true},
		{"at once, seen and then not", []SetOp{add(0, 0, 10), read(2, 3, 0), read(4, 5)}, false},
		{"an element is lost", []SetOp{add(0, 0, 1), add(1, 2, 3), read(4, 5, 1)}, false},
		{"an element is lost later", []SetOp{add(0, 0, 1), read(2, 3, 0), add(1, 4, 5), read(6, 7, 1)}, false},
		{"a stale read", []SetOp{add(0, 0, 1), read(2, 3)}, false},
		{"two orders", []SetOp{add(0, 0, 9), add(1, 0, 9), read(2, 5, 0), read(3, 6, 1)}, false},
		{"what was not added", []SetOp{read(0, 1, 5)}, false},
		{"unknown, never seen", []SetOp{unknown(0, 0, 1), add(1, 2, 3), read(4, 5, 1)}, true},
		{"unknown, seen much later", []SetOp{unknown(0, 0, 1), read(2, 3), add(1, 4, 5), read(6, 7, 1), read(8, 9, 0, 1)}, true},
		{"unknown, seen and then lost", []SetOp{unknown(0, 0, 1), read(2, 3, 0), read(4, 5)}, false},
		{"unknown, seen before it was called", []SetOp{read(0, 1, 0), unknown(0, 2, 3)}, false},
		{"unknown, seen by two, one of which may be before", []SetOp{unknown(0, 0, 1), read(2, 9), read(3, 5, 0), read(6, 8, 0)}, true},
		{"a stale write takes what is known", []SetOp{add(0, 0, 1), unknown(1, 2, 3), add(2, 4, 5), read(6, 7, 0, 1)}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			broken := CheckSets(tc.ops)
			require.Equal(t, tc.want, len(broken) == 0, broken)
		})
	}
	t.Run("each set on its own", func(t *testing.T) {
		other := read(4, 5)
		other.Set = "set/y"
		ops := []SetOp{add(0, 0, 1), add(1, 2, 3), read(4, 5, 1), other}
		broken := CheckSets(ops)
		require.Len(t, broken, 1)
		require.Equal(t, "set/x", broken[0].What)
	})
}

// Many unknown outcomes at once are no burden: tried out, they would take years.
func TestCheckSetsDecidesTheUnknown(t *testing.T) {
	var ops []SetOp
	seen := Set(0)
	for i := range SetSize {
		ops = append(ops, SetOp{Set: "set/x", Add: true, Element: i, Unknown: true, Call: at(i), Return: at(i)})
		if i%2 == 1 {
			seen = seen.With(i)
		}
		ops = append(ops, SetOp{Set: "set/x", Elements: seen, Call: at(1000 + 2*i), Return: at(1001 + 2*i)})
	}
	require.Empty(t, CheckSets(ops))
	ops[len(ops)-1].Elements &^= Set(0).With(31)
	require.Len(t, CheckSets(ops), 1)
	require.Equal(t, porcupine.Illegal, CheckSets(ops)[0].Result)
}

func TestVerdict(t *testing.T) {
	s := newScript()
	ta := s.put(1, "lock/x/a")
	s.del("lock/x/a")
	r := &Record{}
	r.Op(SetOp{Worker: 1, Set: "set/x", Add: true, Element: 3, Call: at(0), Return: at(1)})
	v := r.Judge(s.log)
	require.Empty(t, v.Problems)

	r.Op(SetOp{Worker: 2, Set: "set/x", Call: at(2), Return: at(3)})
	r.Claim(Claim{1, "lock/x/a", ta, s.rev})
	r.Sample(Sample{1, "lock/x/a", ta, at(10)})
	r.Fault(Fault{"members", "kill 1", at(-5), at(5)})
	r.Problem("something %s", "else")
	v = r.Judge(s.log)
	require.Len(t, v.Problems, 7, v.Problems)
	dir := filepath.Join(t.TempDir(), "new")
	require.NoError(t, v.Save(dir))
	page, err := os.ReadFile(filepath.Join(dir, "set_x.html"))
	require.NoError(t, err)
	require.Contains(t, string(page), "add(3)")
	require.Contains(t, string(page), "kill 1")
	page, err = os.ReadFile(filepath.Join(dir, "lock_x_revisions_2_to_3.html"))
	require.NoError(t, err)
	require.Contains(t, string(page), "lock/x/a (created at 2) came")
	text, err := os.ReadFile(filepath.Join(dir, "history.txt"))
	require.NoError(t, err)
	for _, want := range append(v.Problems, "kill 1", "2 to 3: lock/x/a") {
		require.Contains(t, string(text), want)
	}
}
