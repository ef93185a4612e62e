package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"runtime"
	"strings"
	"text/template"
	"time"
)

//go:embed readme.md.tmpl
var readme string

// writeReadme writes the model's README: what was searched, and the mutants with
// their trails.
func writeReadme(file string, jobs []*job) error {
	funcs := template.FuncMap{
		"took":   func(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) },
		"number": thousands,
		"join":   func(s []string) string { return strings.Join(s, "\n") },
		"or": func(formula string) string {
			if formula == "" {
				return "assertions"
			}
			return formula
		},
	}
	t, err := template.New("").Funcs(funcs).Parse(readme)
	if err != nil {
		return err
	}
	type row struct {
		Search search
		Mutant mutant
		Of     string // the model, if it is not that of one name
		R      result
	}
	data := struct {
		Searches, Mutants []row
		CPUs              int
		Memory            int
	}{CPUs: runtime.NumCPU(), Memory: memory}
	for _, j := range jobs {
		if j.search != nil {
			data.Searches = append(data.Searches, row{Search: *j.search, R: j.result})
		} else {
			r := row{Mutant: *j.mutant, R: j.result}
			if file := j.mutant.file(); file != lock {
				r.Of = file + ", "
			}
			data.Mutants = append(data.Mutants, r)
		}
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// thousands writes n with a comma between each three digits.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
