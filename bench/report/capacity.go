package report

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/template"
)

//go:embed capacity.md.tmpl
var capacityPage string

// WriteCapacity writes the page that says what one cluster carries. It fails if a figure
// of the page was not measured.
func (rep Report) WriteCapacity(path string) error {
	at := func(kind string, n int, value string) (float64, error) {
		s := rep.get(atRest(kind, n, value))
		if !s.ok() {
			return 0, fmt.Errorf("no %s of %s/%d", value, kind, n)
		}
		return s.median(), nil
	}
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
		"list":  func(v ...float64) []float64 { return v },
		"at":    at,
		// why a number was not measured
		"failure": func(kind string, n int) string {
			for _, run := range rep {
				for _, res := range run.Failed() {
					if res.Quantity == fmt.Sprintf("%s/%d", kind, n) {
						_, why, _ := strings.Cut(res.Error, "bench: ")
						return why
					}
				}
			}
			return ""
		},
		// what one of 1,000 sessions takes of a value with a TTL, in seconds, if one part of it goes with
		// 1/TTL and another does not: from the two TTLs that were measured
		"session": func(value string, ttl float64) (float64, error) {
			short, err := at("sessions", 1000, value)
			long, lerr := at("sessions60", 1000, value)
			idle, ierr := at("idle", 0, value)
			byTTL := (short - long) / (1/TTL.Seconds() - 1/(6*TTL.Seconds()))
			return (short - idle + byTTL*(1/ttl-1/TTL.Seconds())) / 1000, errors.Join(err, lerr, ierr)
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

// rounded drops all but the first two digits: a limit that one machine suggests.
func rounded(v float64) string {
	unit := 1.0
	for v/unit >= 100 {
		unit *= 10
	}
	return grouped(int64(v/unit) * int64(unit))
}
