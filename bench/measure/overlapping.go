package measure

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock/bench/peer"
)

// Overlapping is how many times a second any of the contenders gets what it wants, when
// each always wants n of some names, other ones each time, and releases them at once. The
// sets that they choose overlap at random.
func Overlapping(ctx context.Context, p peer.Peer, c Contenders, names, n int, d time.Duration) (v Values, err error) {
	ss, err := Open(ctx, p, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, ss.Close()) }()
	base := newName()
	choosers, lockers := make([]*chooser, len(ss.Of)), make([]peer.Locker, len(ss.Of))
	for i, s := range ss.Of {
		choosers[i] = &chooser{session: s.(peer.MultiSession), base: base, names: names, n: n}
		lockers[i] = choosers[i]
	}
	sections := make([]section, names)
	var mu sync.Mutex // contenders whose names differ are inside at once
	grants := 0
	var first, last time.Time
	_, err = contend(ctx, lockers, d, func(i int, warm bool) {
		for _, name := range choosers[i].chosen {
			sections[name].enter()
		}
		if !warm {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		last = time.Now()
		if grants == 0 {
			first = last
		}
		grants++
	}, func(i int) {
		for _, name := range choosers[i].chosen {
			sections[name].leave()
		}
	})
	if err != nil {
		return nil, err
	}
	v = Values{}
	for i := range sections {
		v["overlaps"] += float64(sections[i].overlaps.Load())
	}
	if grants > 1 {
		v["per_s"] = float64(grants-1) / last.Sub(first).Seconds()
	}
	return v, nil
}

// A chooser locks n of the names together, chosen at random each time.
type chooser struct {
	peer.Locker // of the names that are chosen
	session     peer.MultiSession
	base        string
	names, n    int
	chosen      []int
}

func (c *chooser) Lock(ctx context.Context) error {
	c.chosen = rand.Perm(c.names)[:c.n]
	slices.Sort(c.chosen)
	names := make([]string, c.n)
	for i, chosen := range c.chosen {
		names[i] = fmt.Sprintf("%s/%02d", c.base, chosen)
	}
	c.Locker = c.session.Multi(names)
	return c.Locker.Lock(ctx)
}
