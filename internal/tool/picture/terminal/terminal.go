// Package terminal is the screen of docs/show.svg, and makes the picture of it. It is apart from the command, so that its test
// need not link a server.
package terminal

import (
	"fmt"
	"html"
	"strconv"
	"strings"
	"time"
)

const (
	// Columns is the width of the screen.
	Columns = 92
	// Rows is the height of the screen.
	Rows = 17
	// Lock is the name of the lock that the picture shows.
	Lock = "jobs/report"
)

// A Frame is the content of the screen from a point in time on.
type Frame struct {
	At    time.Duration
	Lines []string // of SVG
}

// A Terminal interprets only the control sequences that etcdlock uses.
type Terminal struct {
	cells [][]cell
	x, y  int
	class string // of the text that is written next
}

type cell struct {
	r     rune
	class string
}

// New makes an empty screen.
func New(columns, rows int) *Terminal {
	t := &Terminal{cells: make([][]cell, rows)}
	for i := range t.cells {
		t.cells[i] = make([]cell, columns)
	}
	return t
}

// Write shows what a program writes.
func (t *Terminal) Write(s string) {
	for s != "" {
		if rest, ok := strings.CutPrefix(s, "\x1b["); ok {
			n := strings.IndexFunc(rest, func(r rune) bool { return r >= '@' && r <= '~' })
			if n < 0 {
				return // incomplete; the next update redraws everything
			}
			t.control(rest[:n], rest[n])
			s = rest[n+1:]
			continue
		}
		r := []rune(s)[0]
		s = s[len(string(r)):]
		switch {
		case r == '\r':
			t.x = 0
		case r == '\n' && t.y == len(t.cells)-1:
			t.cells = append(t.cells[1:], make([]cell, len(t.cells[0])))
		case r == '\n':
			t.y++
		case t.x < len(t.cells[t.y]):
			t.cells[t.y][t.x] = cell{r, t.class}
			t.x++
		}
	}
}

func (t *Terminal) control(args string, final byte) {
	switch final {
	case 'A':
		t.y = max(0, t.y-1)
	case 'J': // clear from here to the end
		clear(t.cells[t.y][t.x:])
		for _, row := range t.cells[t.y+1:] {
			clear(row)
		}
	case 'K':
		clear(t.cells[t.y][t.x:])
	case 'm':
		t.class = map[string]string{"0": "", "1": "bold", "2": "dim", "1;31": "red", "1;32": "green"}[args]
	}
}

const (
	charWidth  = 8.43 // of a 14 px monospace font
	lineHeight = 19
	margin     = 14
)

// SVG returns the screen with one text element for each line.
func (t *Terminal) SVG() (lines []string) {
	for y, row := range t.cells {
		var b strings.Builder
		for x := 0; x < len(row); {
			end := x
			for end < len(row) && row[end].class == row[x].class && row[end].r != 0 {
				end++
			}
			if end == x {
				x++
				continue
			}
			var run []rune
			for _, c := range row[x:end] {
				run = append(run, c.r)
			}
			if strings.TrimSpace(string(run)) != "" {
				fmt.Fprintf(&b, `<tspan x="%s" class="%s">%s</tspan>`, number(margin+float64(x)*charWidth), row[x].class, html.EscapeString(string(run)))
			}
			x = end
		}
		if b.Len() > 0 {
			lines = append(lines, fmt.Sprintf(`<text xml:space="preserve" y="%d">%s</text>`, margin+lineHeight*(y+1)+24, strings.ReplaceAll(b.String(), ` class=""`, "")))
		}
	}
	return lines
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', 1, 64) }

// Render returns an SVG that shows the frames one after the other, in a loop. It uses no
// script, so the animation also works in an image element. If animation is not supported
// or not wanted, the SVG shows the frame with the most content.
func Render(frames []Frame) string {
	const hold = 2 * time.Second // duration of the last frame
	total := frames[len(frames)-1].At + hold
	still := 0
	for i, f := range frames {
		if len(strings.Join(f.Lines, "")) > len(strings.Join(frames[still].Lines, "")) {
			still = i
		}
	}
	width, height := 2*margin+Columns*charWidth, 2*margin+Rows*lineHeight+24
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %d" width="%s" role="img" aria-label="etcdlock show --watch: holders and waiters of a lock as they come, move up and leave">
<!-- Made by go run ./internal/tool/picture, from a real run. -->
<style>
.screen { fill: #161b22; stroke: #30363d }
text { fill: #c9d1d9; font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre }
.bold { font-weight: bold } .dim { fill: #8b949e } .red { fill: #f85149; font-weight: bold } .green { fill: #3fb950; font-weight: bold }
.f { visibility: hidden; animation: %ss step-end infinite }
`, number(width), height, number(width), number(total.Seconds()))
	for i, f := range frames {
		until := total
		if i+1 < len(frames) {
			until = frames[i+1].At
		}
		from, to := percent(f.At, total), percent(until, total)
		if i == 0 {
			fmt.Fprintf(&b, "@keyframes f%d { 0%% { visibility: visible } %s { visibility: hidden } }\n", i, to)
		} else {
			fmt.Fprintf(&b, "@keyframes f%d { 0%% { visibility: hidden } %s { visibility: visible } %s { visibility: hidden } }\n", i, from, to)
		}
		fmt.Fprintf(&b, "#f%d { animation-name: f%d }\n", i, i)
	}
	fmt.Fprintf(&b, `#f%d { visibility: visible }
@media (prefers-reduced-motion: reduce) { .f { animation: none } }
</style>
<rect class="screen" x=".5" y=".5" width="%s" height="%d" rx="8"/>
<text x="%d" y="%d" class="dim">$ etcdlock show --watch %s</text>
`, still, number(width-1), height-1, margin, margin+lineHeight-4, Lock)
	for i, f := range frames {
		fmt.Fprintf(&b, "<g id=\"f%d\" class=\"f\">\n%s\n</g>\n", i, strings.Join(f.Lines, "\n"))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func percent(d, total time.Duration) string {
	return strconv.FormatFloat(100*d.Seconds()/total.Seconds(), 'f', 2, 64) + "%"
}
