package report

import (
	"fmt"
	"math"
)

// show formats the median and, if the rounds differ, the smallest and the largest value.
func (s sample) show(format func(float64) string) string {
	if !s.ok() {
		return "–"
	}
	text := format(s.median())
	if low, high := format(s.values[0]), format(s.values[len(s.values)-1]); low != high {
		text += fmt.Sprintf(" <sub>%s–%s</sub>", low, high)
	}
	if s.overlapped > 0 {
		text += fmt.Sprintf(" **(two held it at once, in %d rounds)**", s.overlapped)
	}
	return text
}

func factor(v float64) string { return number(v) + "×" }

// percent formats a share of one core.
func percent(v float64) string { return number(100*v) + " %" }

// size formats bytes.
func size(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e9:
		return number(v/1e9) + " GB"
	case a >= 1e6:
		return number(v/1e6) + " MB"
	case a >= 1e4:
		return number(v/1e3) + " kB"
	}
	return number(math.Round(v)) + " B"
}

// duration formats microseconds.
func duration(us float64) string {
	switch {
	case us >= 1e6:
		return number(us/1e6) + " s"
	case us >= 1e4:
		return number(us/1e3) + " ms"
	}
	return number(us) + " µs"
}

// number formats three digits or all those before the point.
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
