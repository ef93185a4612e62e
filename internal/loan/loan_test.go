package loan

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func names(all ...string) func() []string { return func() []string { return all } }

func lasts(string) bool { return true }

// A ctx finds its loan by each name, from the source that has lent it, and from no other.
func TestIn(t *testing.T) {
	from, other := new(int), new(int)
	ctx, n := Lend(t.Context(), "hold", false, []string{"a", "b"}, from)
	require.Same(t, n, In(ctx, any(from), names("a"), lasts))
	require.Same(t, n, In(ctx, any(from), names("c", "b"), lasts))
	require.Nil(t, In(ctx, any(from), names("c"), lasts))
	require.Nil(t, In(ctx, any(other), names("a"), lasts))
	require.Nil(t, In(ctx, nil, names("a"), lasts))
	require.Nil(t, In(t.Context(), any(from), names("a"), lasts))
}

// A loan is found neither after Do has returned, nor when its hold has ended. What is lent inside is found as well.
func TestIn_Over(t *testing.T) {
	from := any(new(int))
	outer, n := Lend(t.Context(), "outer", false, []string{"a"}, from)
	inner, m := Lend(outer, "inner", true, []string{"b"}, from)
	require.Same(t, n, In(inner, from, names("a"), lasts))
	require.Same(t, m, In(inner, from, names("b"), lasts))
	require.Nil(t, In(inner, from, names("b"), func(hold string) bool { return hold != "inner" }))
	m.End()
	require.Nil(t, In(inner, from, names("b"), lasts))
	require.Same(t, n, In(inner, from, names("a"), lasts))
	n.End()
	require.Nil(t, In(inner, from, names("a"), lasts))
}

// A ctx ends with its hold, and with no other, until it has ended itself.
func TestEndsWith(t *testing.T) {
	hold, other, outer := new(int), new(int), t.Context()
	ctx, cancel := context.WithCancel(outer)
	defer cancel()
	ending := Ending(ctx, outer, hold)
	require.Equal(t, outer, EndsWith(ending, hold))
	require.Equal(t, outer, EndsWith(context.WithoutCancel(ending), hold))
	require.Nil(t, EndsWith(ending, other))
	require.Nil(t, EndsWith(ctx, hold))
	cancel()
	require.Nil(t, EndsWith(ending, hold))
}

// To look for a loan in a ctx that has none costs nothing.
func TestIn_AllocatesNothing(t *testing.T) {
	ctx, from, hold, all := t.Context(), any(new(int)), new(int), names("a")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_ = In(ctx, from, all, lasts)
		_ = EndsWith(ctx, hold)
	}))
}

func TestJoin(t *testing.T) {
	hold, fn := errors.New("etcdlock: lost"), errors.New("etcdlock: failed")
	require.Same(t, hold, Join(hold, nil))
	err := Join(hold, fn)
	require.EqualError(t, err, "etcdlock: lost (in it: failed)")
	require.ErrorIs(t, err, hold)
	require.ErrorIs(t, err, fn)
}
