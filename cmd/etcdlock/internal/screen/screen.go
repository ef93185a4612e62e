// Package screen prints lines and, on a terminal, draws a board below them.
package screen

import (
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
	"golang.org/x/text/width"
)

// A View prints lines. On a terminal it also draws a board below them, and redraws it
// in its place.
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

// Print adds lines above the board. They stay there.
func (v *View) Print(lines ...Line) {
	if !v.live {
		for _, l := range lines {
			v.write(strings.TrimRight(l.Text(), " ") + "\n")
		}
		return
	}
	var b strings.Builder
	v.home(&b)
	b.WriteString("\x1b[J") // the board may be longer than these lines
	for _, l := range lines {
		b.WriteString(l.Render(v.color) + "\n")
	}
	v.drawn = nil
	v.write(b.String())
}

// Draw draws the board if there is a terminal. It cuts the board to the width and the
// height of the terminal: otherwise the board would not stay in its place.
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
		l = l.Cut(width - 1) // some terminals wrap as soon as the last column is written
		b.WriteString(l.Render(v.color) + "\x1b[K\n")
		v.drawn = append(v.drawn, l.Width())
	}
	b.WriteString("\x1b[J")
	v.write(b.String())
}

// home moves the cursor to the first line of the board. A terminal that has become
// narrower has wrapped the lines that were drawn.
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

// Close removes the board and shows the cursor again. Print can still be used
// afterwards.
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

// style is the look of a text on a terminal, as the numbers of an SGR sequence.
type style string

const (
	plain style = ""
	bold  style = "1"
	dim   style = "2"
	red   style = "1;31"
	green style = "1;32"
)

// A Span is a text with a style.
type Span struct {
	text  string
	style style
}

// A Line is one line of a View.
type Line []Span

// The styles.

// Plain is text without a style.
func Plain(s string) Span { return Span{s, plain} }

// Bold is for titles and names.
func Bold(s string) Span { return Span{s, bold} }

// Dim is for less important text.
func Dim(s string) Span { return Span{s, dim} }

// Red is for problems.
func Red(s string) Span { return Span{s, red} }

// Green is for good news.
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

// Width is the number of columns that the line takes.
func (l Line) Width() int {
	n := 0
	for _, r := range l.Text() {
		n += columns(r)
	}
	return n
}

// columns is the number of columns that a character takes. The board stays in its
// place only if this is right for every character, and owners may contain any.
func columns(r rune) int {
	switch kind := width.LookupRune(r).Kind(); {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case kind == width.EastAsianWide, kind == width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Cut shortens the line to at most width columns.
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

// Render is the line with the sequences for a terminal.
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

// Pad fills s with spaces up to width; a negative width puts them on its left.
func Pad(s string, width int) string {
	fill := strings.Repeat(" ", max(0, max(width, -width)-utf8.RuneCountInString(s)))
	if width < 0 {
		return fill + s
	}
	return s + fill
}
