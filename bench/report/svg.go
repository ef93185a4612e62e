package report

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"os"
	"slices"
	"strings"
)

// A plot is a chart with one line for each series over the same points. Its scale is
// logarithmic, so equal ratios have equal distances.
type plot struct {
	title, unit string
	points      []string
	series      []series
}

// A series has the values of one peer at the points; 0 means that there is no value.
type series struct {
	name   string
	values []float64
}

const (
	plotWidth, plotHeight   = 760, 400
	left, right, top, below = 70, 190, 50, 50
)

// colours has a colour for each peer. It is the same in every plot, and
// distinguishable for colour-blind readers.
var colours = map[string]string{
	"floor":          "#999999",
	"etcdlock":       "#d55e00",
	"concurrency":    "#0072b2",
	"recipes":        "#0072b2",
	"zookeeper":      "#009e73",
	"redsync":        "#cc79a7",
	"redsync, fsync": "#e69f00",
}

// write draws the plot as SVG.
func (p plot) write(path string) error {
	low, high := p.limits()
	y := func(v float64) float64 {
		share := (math.Log10(v) - math.Log10(low)) / (math.Log10(high) - math.Log10(low))
		return plotHeight - below - share*(plotHeight-below-top)
	}
	x := func(i int) float64 {
		return left + (float64(i)+0.5)*float64(plotWidth-left-right)/float64(len(p.points))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13">`+"\n",
		plotWidth, plotHeight, plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, plotHeight)
	text(&b, left, 24, "start", "#000000", `font-size="16"`, p.title)
	text(&b, left, 42, "start", "#555555", "", p.unit)
	for v := low; v <= high*1.0001; v *= 10 {
		fmt.Fprintf(&b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#dddddd"/>`+"\n", left, plotWidth-right, y(v), y(v))
		text(&b, left-8, y(v)+4, "end", "#555555", "", number(v))
	}
	for i, name := range p.points {
		text(&b, x(i), plotHeight-below+20, "middle", "#000000", "", name)
	}
	slices.SortStableFunc(p.series, func(s, t series) int { return cmp.Compare(t.last(), s.last()) })
	label := 0.0
	for _, s := range p.series {
		if s.last() > 0 {
			label = max(label+15, y(s.last()))
			p.draw(&b, s, x, y, label)
		}
	}
	b.WriteString("</svg>\n")
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// draw draws a line, and its name after its end at the height label. Only one series
// shows its figures, because those of all series would overlap.
func (p plot) draw(b *strings.Builder, s series, x func(int) float64, y func(float64) float64, label float64) {
	colour := colours[s.name]
	var line []string
	for i, v := range s.values {
		if v <= 0 {
			continue
		}
		line = append(line, fmt.Sprintf("%.1f,%.1f", x(i), y(v)))
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"><title>%s, %s: %s</title></circle>`+"\n",
			x(i), y(v), colour, html.EscapeString(s.name), html.EscapeString(p.points[i]), number(v))
		if s.name == "etcdlock" {
			text(b, x(i), y(v)-9, "middle", colour, `font-size="11"`, number(v))
		}
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(line, " "), colour)
	text(b, plotWidth-right+8, label+4, "start", colour, `font-weight="bold"`, s.name)
}

// last returns the last value that exists.
func (s series) last() float64 {
	for _, v := range slices.Backward(s.values) {
		if v > 0 {
			return v
		}
	}
	return 0
}

// limits returns the powers of ten around all values.
func (p plot) limits() (low, high float64) {
	low, high = math.Inf(1), 0
	for _, s := range p.series {
		for _, v := range s.values {
			if v > 0 {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	if high == 0 {
		return 1, 10
	}
	low = math.Pow(10, math.Floor(math.Log10(low)))
	return low, max(10*low, math.Pow(10, math.Ceil(math.Log10(high))))
}

func text(b *strings.Builder, x, y float64, anchor, colour, more, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s" %s>%s</text>`+"\n", x, y, anchor, colour, more, html.EscapeString(s))
}

// number formats v with three significant digits.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a >= 99.5:
		return grouped(int64(math.Round(v)))
	case a >= 9.95:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// grouped formats 12345 as 12,345.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
