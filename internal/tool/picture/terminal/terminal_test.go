package terminal

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTerminal(t *testing.T) {
	s := New(10, 3)
	s.Write("one\r\n\x1b[1;32mtwo\x1b[0m <3>\r\nlonger than ten\r\nfour")
	require.Equal(t, []string{
		`<text xml:space="preserve" y="57"><tspan x="14.0" class="green">two</tspan><tspan x="39.3"> &lt;3&gt;</tspan></text>`,
		`<text xml:space="preserve" y="76"><tspan x="14.0">longer tha</tspan></text>`,
		`<text xml:space="preserve" y="95"><tspan x="14.0">four</tspan></text>`,
	}, s.SVG(), "the text must be scrolled, cut and escaped")
	s.Write("\r\x1b[A\x1b[A2\x1b[K\r\n\x1b[?25l\x1b[J")
	require.Equal(t, []string{`<text xml:space="preserve" y="57"><tspan x="14.0" class="">2</tspan></text>`},
		[]string{strings.Replace(s.SVG()[0], `x="14.0">`, `x="14.0" class="">`, 1)}, "the screen must be redrawn")
}

// The committed picture was made by this program and is well-formed.
func TestPicture(t *testing.T) {
	frames := []Frame{{0, []string{"<text>a</text>"}}, {time.Second, []string{"<text>ab</text>"}}}
	committed, err := os.ReadFile("../../../../docs/show.svg")
	require.NoError(t, err)
	for _, svg := range []string{Render(frames), string(committed)} {
		d := xml.NewDecoder(strings.NewReader(svg))
		groups := 0
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			if e, ok := token.(xml.StartElement); ok && e.Name.Local == "g" {
				groups++
			}
		}
		require.GreaterOrEqual(t, groups, 2)
	}
	require.Contains(t, string(committed), "↑ was place", "an entry must have moved up in the queue")
}
