// Package logtest records what the library logs, for tests. It needs no server.
package logtest

import (
	"bytes"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	hang = 30 * time.Second // a generous bound
	tick = 5 * time.Millisecond
)

// A Log stores the lines of a logger.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// Logger returns a logger whose lines have no times.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "lasted" {
			return slog.Attr{}
		}
		return a
	}}))
}

// Lines returns the lines so far.
func (l *Log) Lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.buf.Len() == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(l.buf.String(), "\n"), "\n")
}

// Messages returns the levels and messages of the lines.
func (l *Log) Messages() []string {
	msg := regexp.MustCompile(`^level=(\S+) msg="?(.*?)("| \w+=|$)`)
	var out []string
	for _, line := range l.Lines() {
		m := msg.FindStringSubmatch(line)
		out = append(out, m[1]+" "+m[2])
	}
	return out
}

// Forget waits for a line with this message and forgets the lines so far. So an outage that a stalled machine brings about
// while a test sets up is not in the lines that follow.
func (l *Log) Forget(t testing.TB, message string) {
	t.Helper()
	require.Eventually(t, func() bool { return slices.Contains(l.Messages(), message) }, hang, tick)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf.Reset()
}

// Require waits for as many messages as are wanted and compares them.
func (l *Log) Require(t testing.TB, want ...string) {
	t.Helper()
	assert.Eventually(t, func() bool { return len(l.Messages()) >= len(want) }, hang, tick)
	require.Equal(t, want, l.Messages())
}

// The messages of the library, after their levels.
const (
	Up     = "INFO session up"
	Lost   = "WARN session lost"
	Loss   = "WARN lock lost"
	Outage = "WARN etcd outage: locks wait until it is over"
	Over   = "INFO etcd outage is over"
	Nobody = "INFO etcd outage concerns nobody anymore"
)

// NoLease is the lease in the lines of an outage that no session has.
type NoLease struct{}

// String implements fmt.Stringer.
func (NoLease) String() string { return "none" }
