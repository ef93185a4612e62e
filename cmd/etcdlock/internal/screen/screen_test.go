package screen

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLineCut(t *testing.T) {
	l := Line{Bold("abc"), Plain("défg")}
	require.Equal(t, 7, l.Width())
	require.Equal(t, "abcdéfg", l.Cut(7).Text())
	require.Equal(t, "abcdé…", l.Cut(6).Text())
	require.Equal(t, "ab…", l.Cut(3).Text())
	require.Equal(t, "…", l.Cut(1).Text())
	require.Equal(t, "", l.Cut(0).Text())

	wide := Line{Bold("東京"), Plain("e\u0301!")} // two columns each, and an accent without a column
	require.Equal(t, 6, wide.Width())
	require.Equal(t, "東京e\u0301!", wide.Cut(6).Text())
	require.Equal(t, "東京…", wide.Cut(5).Text())
	require.Equal(t, "東…", wide.Cut(4).Text())
	require.Equal(t, "東…", wide.Cut(3).Text())
	require.Equal(t, "…", wide.Cut(2).Text())
	require.Equal(t, "\x1b[1mab\x1b[0m\x1b[2m…\x1b[0m", l.Cut(3).Render(true))
	require.Equal(t, "ab  ", Pad("ab", 4))
	require.Equal(t, "  äb", Pad("äb", -4))
}
