package demo

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestChecksPassGoodHistory(t *testing.T) {
	for _, f := range check(simOutcome()) {
		require.Empty(t, f.problems, f.title)
	}
}

// Each row breaks a good history in one way, and the named check must see it.
func TestChecksFail(t *testing.T) {
	const (
		order    = "order of arrival"
		overlaps = "overlaps seen"
		tokens   = "tokens strictly growing"
		writes   = "no update lost"
		readers  = "readers together"
		victim   = "the killed holder"
		rounds   = "all rounds done"
		left     = "queues empty"
	)
	// Of the mutex, p1 p2 (killed) p3 p1; of the read-write lock, w1 r1 r2 w2.
	type acqs []*acquisition
	for _, tt := range []struct {
		name    string
		check   string
		problem string
		spoil   func(o *outcome, m, rw acqs)
	}{
		{"barging", order, "p1 (token 18) arrived later but was granted before p3 (token 14)", func(_ *outcome, m, _ acqs) {
			m[2].begin, m[3].begin = m[3].begin, m[2].begin
		}},
		{"reader passes writer", order, "arrived later but was granted before w1", func(_ *outcome, _, rw acqs) { rw[1].begin = rw[0].begin - 1 }},
		{"writer passes reader", order, "w2 (token 15) arrived later", func(_ *outcome, _, rw acqs) { rw[3].begin = rw[2].begin - 1 }},
		{"never granted", order, "never got its turn", func(_ *outcome, m, _ acqs) { m[3].begin, m[3].end = 0, 0 }},
		{"nothing happened", order, "nobody arrived", func(o *outcome, _, _ acqs) { o.locks = nil }},

		{"two holders by revision", overlaps, "p1 (token 11) and p2 (token 13), by etcd's revisions", func(_ *outcome, m, _ acqs) { m[1].begin = m[0].gone - 1 }},
		{"granted while the killed one's entry is there", overlaps, "by etcd's revisions", func(_ *outcome, m, _ acqs) { m[1].gone = m[2].begin + 1 }},
		{"entry never left", overlaps, "by etcd's revisions", func(_ *outcome, m, _ acqs) { m[0].gone = 0 }},
		{"two holders by the clock", overlaps, "by the clock", func(_ *outcome, m, _ acqs) { m[3].granted = m[2].releasing.Add(-1) }},
		{"granted before the kill", overlaps, "by the clock", func(_ *outcome, m, _ acqs) { m[2].granted = m[1].killed.Add(-1) }},
		{"reader with writer by revision", overlaps, "r1", func(_ *outcome, _, rw acqs) { rw[1].begin = rw[0].gone - 1 }},
		{"writer with reader by the clock", overlaps, "w2", func(_ *outcome, _, rw acqs) { rw[3].granted = rw[1].releasing.Add(-1) }},

		{"stale write", tokens, "p1 wrote with token 11 after p3 with 14", func(o *outcome, _, _ acqs) {
			c := o.locks[0].counter
			c[2].Token, c[2].Worker = 11, "p1"
		}},
		{"same token twice", tokens, "wrote with token", func(o *outcome, _, _ acqs) { o.locks[0].counter[1].Token = o.locks[0].counter[0].Token }},
		{"grant with a lower token", tokens, "was granted after token 14", func(_ *outcome, m, _ acqs) { m[1].begin = m[2].begin + 1 }},
		{"invented token", tokens, "which etcd did not give", func(o *outcome, _, _ acqs) {
			o.locks[0].claimed = []*acquisition{{token: 99, granted: time.Now()}}
		}},
		{"wrong token told", tokens, "its worker has not reported this token", func(_ *outcome, m, _ acqs) { m[0].granted = time.Time{} }},
		{"no writes", tokens, "nobody wrote", func(o *outcome, _, _ acqs) { o.locks[0].counter, o.locks[1].counter = nil, nil }},

		{"lost update", writes, "wrote 1 as update 2", func(o *outcome, _, _ acqs) { o.locks[0].counter[1].N = 1 }},
		{"lost update at the end", writes, "its counter was written 3 times and is 2", func(o *outcome, _, _ acqs) { o.locks[0].final.counter = 2 }},
		{"write missing", writes, "etcd has 0 by", func(o *outcome, _, _ acqs) { o.locks[0].counter = o.locks[0].counter[:2] }},
		{"write after the hold", writes, "outside of its hold", func(_ *outcome, m, _ acqs) { m[0].end = m[0].gone + 1 }},
		{"write before the hold", writes, "outside of its hold", func(_ *outcome, m, _ acqs) { m[0].begin = m[0].token - 1 }},
		{"section not ended", writes, "etcd does not have its last write", func(_ *outcome, m, _ acqs) { m[0].end = 0 }},
		{"killed worker writes on", writes, "etcd does not have its last write", func(o *outcome, m, _ acqs) { o.locks[0].counter[1].Token = m[1].token }},
		{"reader writes", writes, "without an exclusive section", func(o *outcome, _, rw acqs) { o.locks[1].counter[1].Token = rw[1].token }},
		{"wrong sum", writes, "read 5 and wrote 1", func(o *outcome, m, _ acqs) { m[0].section.Read = 5 }},
		{"another's section", writes, "wrote as p3", func(_ *outcome, m, _ acqs) { m[0].section.Worker = "p3" }},
		{"section changed in etcd", writes, "its history says", func(o *outcome, m, _ acqs) {
			o.locks[0].final.sections[m[0].token] = sectionValue{Worker: "p1"}
		}},
		{"section gone from etcd", writes, "its history says", func(o *outcome, m, _ acqs) { delete(o.locks[0].final.sections, m[0].token) }},
		{"odd event", writes, "strange", func(o *outcome, _, _ acqs) { o.locks[1].odd = []string{"strange"} }},

		{"reader sees a write", readers, "saw the counter change", func(_ *outcome, _, rw acqs) { rw[1].section.Last++ }},
		{"reader sees old state", readers, "saw the counter change", func(_ *outcome, _, rw acqs) { rw[1].section.Read, rw[1].section.Last = 0, 0 }},
		{"readers one by one", readers, "no two readers", func(_ *outcome, _, rw acqs) { rw[1].end = rw[2].begin - 1 }},

		{"nobody killed", victim, "nobody was killed", func(_ *outcome, m, _ acqs) { m[1].killed = time.Time{} }},
		{"two killed", victim, "was killed, too", func(_ *outcome, m, _ acqs) { m[2].killed = m[2].granted.Add(1) }},
		{"killed before its grant", victim, "did not hold the lock", func(_ *outcome, m, _ acqs) { m[1].killed = m[1].granted.Add(-1) }},
		{"killed after its section", victim, "had left its section", func(_ *outcome, m, _ acqs) { m[1].releasing = m[1].killed }},
		{"entry stays", victim, "is still in the queue", func(_ *outcome, m, _ acqs) { m[1].gone = 0 }},
		{"entry went too early", victim, "was gone before", func(_ *outcome, m, _ acqs) { m[1].goneAt = m[1].killed.Add(-1) }},
		{"entry went with its lease alive", victim, "its lease had not ended", func(_ *outcome, m, _ acqs) { m[1].leaseGone = false }},
		{"entry went before the deadline", victim, "before its deadline", func(_ *outcome, m, _ acqs) { m[1].deadline = m[1].goneAt.Add(1) }},
		{"nobody followed", victim, "nobody got the lock", func(_ *outcome, m, _ acqs) { m[2].begin, m[3].begin = 0, 0 }},
		{"followed too early", victim, "had the lock while the entry", func(_ *outcome, m, _ acqs) { m[2].begin = m[1].gone - 1 }},

		{"round missing", rounds, "p1 did 1 of 2 rounds", func(o *outcome, _, _ acqs) { o.workers[0].rounds = 1 }},
		{"ended badly", rounds, "p1 did not end well", func(o *outcome, _, _ acqs) { o.workers[0].finished = false }},
		{"nothing done", rounds, "nobody did a round", func(o *outcome, _, _ acqs) { o.workers = nil }},

		{"entry left in etcd", left, "demo/mutex/1 is left", func(o *outcome, _, _ acqs) { o.locks[0].final.entries = []string{"demo/mutex/1"} }},
		{"no end in history", left, "does not show", func(_ *outcome, _, rw acqs) { rw[3].gone = 0 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := simOutcome()
			tt.spoil(&o, o.locks[0].acqs, o.locks[1].acqs)
			for _, f := range check(o) {
				if strings.HasPrefix(f.title, tt.check) {
					require.Contains(t, strings.Join(f.problems, "\n"), tt.problem)
					return
				}
			}
			t.Fatal("no such check")
		})
	}
}

// A failed check makes an error that says why, and a line that shows it.
func TestJudge(t *testing.T) {
	f := finding{title: "overlaps seen: 0"}
	f.problem("%s and %s", "p1", "p2")
	lines, err := verdict([]finding{{title: "fine"}, f, {title: "bad", problems: []string{"x", "y"}}})
	require.EqualError(t, err, "the demo found a fault in the locks; please report it: overlaps seen: 0: p1 and p2; bad: x")
	var text []string
	for _, l := range lines {
		text = append(text, strings.TrimSpace(l.Text()))
	}
	require.Len(t, text, 6)
	require.Equal(t, "ok    fine", text[0])
	require.Equal(t, "FAIL  overlaps seen: 0", text[1])
	require.Equal(t, "p1 and p2", text[2])
	_, err = verdict([]finding{{title: "fine"}})
	require.NoError(t, err)
}
