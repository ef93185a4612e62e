package report

import (
	_ "embed"
	"os"
	"strings"
	"text/template"
)

//go:embed capacity.md.tmpl
var capacityPage string

// WriteCapacity writes the page that says what one cluster carries.
func (rep Report) WriteCapacity(path string) error {
	t, err := template.New("capacity").Funcs(template.FuncMap{
		"n": number, "pct": percent, "size": size, "us": duration,
		"mul": func(a float64, b ...float64) float64 {
			for _, f := range b {
				a *= f
			}
			return a
		},
		"div":   func(a, b float64) float64 { return a / b },
		"round": rounded,
		"ttls":  func() []float64 { return []float64{10, 30, 60} },
		"at":    func(kind string, n int, value string) float64 { return rep.get(atRest(kind, n, value)).median() },
		// what one more of them adds, on average over all of them
		"each": func(kind string, n int, value string) float64 {
			return (rep.get(atRest(kind, n, value)).median() - rep.get(atRest("idle", 0, value)).median()) / float64(n)
		},
	}).Parse(capacityPage)
	if err != nil {
		return err
	}
	var b strings.Builder
	if err := t.Execute(&b, rep); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// rounded drops all but the first digit: a limit that one machine of this kind suggests.
func rounded(v float64) string {
	unit := 1.0
	for v/unit >= 10 {
		unit *= 10
	}
	return grouped(int64(v/unit) * int64(unit))
}
