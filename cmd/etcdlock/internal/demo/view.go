package demo

import (
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// A view prints lines. On a terminal it also keeps a board below them, which is
// drawn anew in its place.
type view struct {
	out   *os.File
	live  bool // there is a board
	color bool
	mute  bool  // the cursor is hidden
	drawn []int // the widths of the board's lines on the screen
	err   error // of the first write that failed
}

// newView makes a view on out.
func newView(out *os.File) *view {
	live := term.IsTerminal(int(out.Fd())) && os.Getenv("TERM") != "dumb"
	return &view{out: out, live: live, color: live && os.Getenv("NO_COLOR") == ""}
}

// print adds lines above the board, which stay.
func (v *view) print(lines ...line) {
	if !v.live {
		for _, l := range lines {
			v.write(strings.TrimRight(l.text(), " ") + "\n")
		}
		return
	}
	var b strings.Builder
	v.home(&b)
	b.WriteString("\x1b[J") // they may be longer than what they replace
	for _, l := range lines {
		b.WriteString(l.render(v.color) + "\n")
	}
	v.drawn = nil
	v.write(b.String())
}

// draw draws the board, if there is a terminal. Its lines are cut to the
// terminal's width, and it to its height: only so does it stay in its place.
func (v *view) draw(board []line) {
	if !v.live || len(board) == 0 && len(v.drawn) == 0 {
		return
	}
	width, height, err := term.GetSize(int(v.out.Fd()))
	if err != nil || width < 1 || height < 1 {
		width, height = 80, 24
	}
	board = board[:min(len(board), height-1)]
	var b strings.Builder
	if !v.mute {
		v.mute = true
		b.WriteString("\x1b[?25l")
	}
	v.home(&b)
	v.drawn = make([]int, 0, len(board))
	for _, l := range board {
		l = l.cut(width - 1) // some terminals wrap when the last column is written
		b.WriteString(l.render(v.color) + "\x1b[K\n")
		v.drawn = append(v.drawn, l.width())
	}
	b.WriteString("\x1b[J")
	v.write(b.String())
}

// home moves the cursor to the board's begin. Where the terminal has become
// narrower, it has wrapped the lines that were drawn.
func (v *view) home(b *strings.Builder) {
	width, _, err := term.GetSize(int(v.out.Fd()))
	if err != nil || width < 1 {
		width = 80
	}
	b.WriteString("\r")
	for _, w := range v.drawn {
		for range 1 + max(0, w-1)/width {
			b.WriteString("\x1b[A")
		}
	}
}

// close removes the board and gives the cursor back. The view may be used on,
// for lines.
func (v *view) close() {
	if !v.live {
		return
	}
	v.draw(nil)
	v.live = false
	if v.mute {
		v.write("\x1b[?25h")
	}
}

func (v *view) write(s string) {
	if _, err := v.out.WriteString(s); err != nil && v.err == nil {
		v.err = err
	}
}

// style is how a terminal shows a text: the numbers of an SGR sequence.
type style string

const (
	plain style = ""
	bold  style = "1"
	dim   style = "2"
	red   style = "1;31"
	green style = "1;32"
)

type span struct {
	text  string
	style style
}

// A line is what a view shows in one line.
type line []span

// text is a line of plain text.
func text(s string) line { return line{{s, plain}} }

func (l line) text() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.text)
	}
	return b.String()
}

func (l line) width() int { return utf8.RuneCountInString(l.text()) }

// cut shortens the line to width.
func (l line) cut(width int) line {
	if l.width() <= width {
		return l
	}
	var short line
	for _, s := range l {
		runes := []rune(s.text)
		if n := max(0, width-1); len(runes) > n {
			return append(short, span{string(runes[:n]), s.style}, span{"…"[:3*min(1, width)], dim})
		}
		short = append(short, s)
		width -= len(runes)
	}
	return short
}

func (l line) render(color bool) string {
	if !color {
		return l.text()
	}
	var b strings.Builder
	for _, s := range l {
		if s.style == plain {
			b.WriteString(s.text)
		} else {
			b.WriteString("\x1b[" + string(s.style) + "m" + s.text + "\x1b[0m")
		}
	}
	return b.String()
}

// pad fills s with spaces up to width, on its left for a negative one.
func pad(s string, width int) string {
	fill := strings.Repeat(" ", max(0, max(width, -width)-utf8.RuneCountInString(s)))
	if width < 0 {
		return fill + s
	}
	return s + fill
}
