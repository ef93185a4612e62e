// Package screen prints lines and, on a terminal, keeps a board below them.
package screen

import (
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
	"golang.org/x/text/width"
)

// A View prints lines. On a terminal it also keeps a board below them, which is
// drawn anew in its place.
type View struct {
	out   *os.File
	live  bool // there is a board
	color bool
	mute  bool  // the cursor is hidden
	drawn []int // the widths of the board's lines on the screen
	err   error // of the first write that failed
}

// New makes a View on out.
func New(out *os.File) *View {
	live := term.IsTerminal(int(out.Fd())) && os.Getenv("TERM") != "dumb"
	return &View{out: out, live: live, color: live && os.Getenv("NO_COLOR") == ""}
}

// Live reports whether there is a board.
func (v *View) Live() bool { return v.live }

// Err is the error of the first write that failed.
func (v *View) Err() error { return v.err }

// Print adds lines above the board, which stay.
func (v *View) Print(lines ...Line) {
	if !v.live {
		for _, l := range lines {
			v.write(strings.TrimRight(l.Text(), " ") + "\n")
		}
		return
	}
	var b strings.Builder
	v.home(&b)
	b.WriteString("\x1b[J") // they may be longer than what they replace
	for _, l := range lines {
		b.WriteString(l.Render(v.color) + "\n")
	}
	v.drawn = nil
	v.write(b.String())
}

// Draw draws the board, if there is a terminal. Its lines are cut to the
// terminal's width, and it to its height: only so does it stay in its place.
func (v *View) Draw(board []Line) {
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
		l = l.Cut(width - 1) // some terminals wrap when the last column is written
		b.WriteString(l.Render(v.color) + "\x1b[K\n")
		v.drawn = append(v.drawn, l.Width())
	}
	b.WriteString("\x1b[J")
	v.write(b.String())
}

// home moves the cursor to the board's begin. Where the terminal has become
// narrower, it has wrapped the lines that were drawn.
func (v *View) home(b *strings.Builder) {
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

// Close removes the board and gives the cursor back. The view may be used on,
// for lines.
func (v *View) Close() {
	if !v.live {
		return
	}
	v.Draw(nil)
	v.live = false
	if v.mute {
		v.write("\x1b[?25h")
	}
}

func (v *View) write(s string) {
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

// A Span is a text in a style.
type Span struct {
	text  string
	style style
}

// A Line is what a View shows in one line.
type Line []Span

// The styles.

// Plain is text as it is.
func Plain(s string) Span { return Span{s, plain} }

// Bold is for titles and names.
func Bold(s string) Span { return Span{s, bold} }

// Dim is for what matters less.
func Dim(s string) Span { return Span{s, dim} }

// Red is for what is wrong.
func Red(s string) Span { return Span{s, red} }

// Green is for what is right.
func Green(s string) Span { return Span{s, green} }

// Text is a line of plain text.
func Text(s string) Line { return Line{Plain(s)} }

// Text is the line without its styles.
func (l Line) Text() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.text)
	}
	return b.String()
}

// Width is how many columns the line takes.
func (l Line) Width() int {
	n := 0
	for _, r := range l.Text() {
		n += columns(r)
	}
	return n
}

// columns is how many columns a character takes. The board stays in its place only
// if its lines are as wide as they are counted, whatever others have called
// themselves.
func columns(r rune) int {
	switch kind := width.LookupRune(r).Kind(); {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case kind == width.EastAsianWide, kind == width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Cut shortens the line to width.
func (l Line) Cut(width int) Line {
	switch {
	case l.Width() <= width:
		return l
	case width < 1:
		return nil
	}
	var short Line
	left := width - 1
	for _, s := range l {
		for i, r := range s.text {
			if left -= columns(r); left < 0 {
				return append(short, Span{s.text[:i], s.style}, Span{"…", dim})
			}
		}
		short = append(short, s)
	}
	return short
}

// Render is the line as a terminal is to get it.
func (l Line) Render(color bool) string {
	if !color {
		return l.Text()
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

// Pad fills s with spaces up to width, on its left for a negative one.
func Pad(s string, width int) string {
	fill := strings.Repeat(" ", max(0, max(width, -width)-utf8.RuneCountInString(s)))
	if width < 0 {
		return fill + s
	}
	return s + fill
}
