package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// When a ctx of WithEnd has ended, so has each ctx that is bound to it, also one that is bound later.
func TestWithEnd(t *testing.T) {
	cause := errors.New("over")
	life, end := WithEnd(t.Context())
	bound, unbind := Bind(t.Context(), life)
	free, freed := Bind(t.Context(), life)
	freed()
	require.NoError(t, bound.Err())
	end(cause)
	end(errors.New("again"))
	late, unbindLate := Bind(t.Context(), life)
	for _, ctx := range []context.Context{life, bound, late} {
		require.Error(t, ctx.Err())
		require.Equal(t, cause, context.Cause(ctx))
	}
	require.Equal(t, context.Canceled, context.Cause(free))
	unbind()
	unbindLate()
	require.Empty(t, life.(*endsAll).bound)
	require.Equal(t, fmt.Sprint(t.Context())+".WithCancel", fmt.Sprint(life))
}
