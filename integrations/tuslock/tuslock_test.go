package tuslock

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"
	"golang.org/x/exp/slog"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/integrations/internal/locktest"
	"github.com/etcdlock/etcdlock/internal/test/harness"
)

var cluster *etcdtest.Cluster

func TestMain(m *testing.M) { os.Exit(harness.Main(&cluster, m.Run)) }

func TestLocker(t *testing.T) {
	locktest.Behaves(t, cluster, handler.ErrLockTimeout, func(locks *etcdlock.Client, name string) locktest.Lock {
		l, err := New(locks, "").NewLock(name)
		require.NoError(t, err)
		return locktest.Lock{
			Lock:   func(ctx context.Context) error { return l.Lock(ctx, func() {}) },
			Unlock: func(context.Context) error { return l.Unlock() },
		}
	})
}

// requested is a requestUnlock that says when it was called. A second call panics.
func requested() (chan struct{}, func()) {
	asked := make(chan struct{})
	return asked, func() { close(asked) }
}

func await(t *testing.T, asked <-chan struct{}) {
	t.Helper()
	select {
	case <-asked:
	case <-time.After(harness.Hang):
		require.Fail(t, "the holder is not asked to let go")
	}
}

// The holder is asked when somebody else wants the lock, be that in another process or in its own.
func TestLock_RequestUnlock(t *testing.T) {
	mine := locktest.Client(t, cluster.Client(t))
	for who, theirs := range map[string]*etcdlock.Client{"another process": locktest.Client(t, cluster.Client(t)), "the same process": mine} {
		t.Run(who, func(t *testing.T) {
			name := harness.LockName(t)
			one, err := New(mine, "").NewLock(name)
			require.NoError(t, err)
			two, err := New(theirs, "").NewLock(name)
			require.NoError(t, err)
			asked, request := requested()
			require.NoError(t, one.Lock(harness.Ctx(t), request))
			second := harness.Async(func() error { return two.Lock(harness.Ctx(t), func() { t.Error("nobody wants it") }) })
			await(t, asked)
			require.NoError(t, one.Unlock())
			require.NoError(t, harness.Result(t, second))
			require.NoError(t, two.Unlock())
		})
	}
}

// requestUnlock may release the lock itself.
func TestLock_RequestUnlocks(t *testing.T) {
	name := harness.LockName(t)
	one, err := New(locktest.Client(t, cluster.Client(t)), "").NewLock(name)
	require.NoError(t, err)
	two, err := New(locktest.Client(t, cluster.Client(t)), "").NewLock(name)
	require.NoError(t, err)
	unlocked := make(chan error, 1)
	require.NoError(t, one.Lock(harness.Ctx(t), func() { unlocked <- one.Unlock() }))
	require.NoError(t, two.Lock(harness.Ctx(t), func() {}))
	require.NoError(t, <-unlocked)
	require.NoError(t, two.Unlock())
}

// A holder that has lost its lock is asked too: another replica may write.
func TestLock_RequestUnlockAfterLoss(t *testing.T) {
	c := cluster.Client(t)
	locks := locktest.Client(t, c)
	name := harness.LockName(t)
	l, err := New(locks, "").NewLock(name)
	require.NoError(t, err)
	asked, request := requested()
	require.NoError(t, l.Lock(harness.Ctx(t), request))
	_, err = c.Delete(harness.Ctx(t), harness.Entries(t, c, name)[0])
	require.NoError(t, err)
	await(t, asked)
	require.ErrorIs(t, l.Unlock(), etcdlock.ErrLost)
}

// replica is a server of uploads that are kept in dir.
func replica(t *testing.T, dir string, locks *etcdlock.Client) string {
	composer := handler.NewStoreComposer()
	filestore.New(dir).UseIn(composer)
	New(locks, "uploads/").UseIn(composer)
	h, err := handler.NewHandler(handler.Config{BasePath: "/files/", StoreComposer: composer, GracefulRequestCompletionTimeout: 100 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	require.NoError(t, err)
	server := httptest.NewServer(http.StripPrefix("/files/", h))
	t.Cleanup(server.Close)
	return server.URL + "/files/"
}

// A request to tusd. Its body may be nil.
func request(t *testing.T, method, url string, body io.Reader, header ...string) *http.Response {
	req, err := http.NewRequestWithContext(harness.Ctx(t), method, url, body)
	require.NoError(t, err)
	req.Header.Set("Tus-Resumable", "1.0.0")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// An upload whose lock is lost is stopped, with what it has stored until then, and goes on at another replica.
func TestTusd_LossInterruptsTheUpload(t *testing.T) {
	c := cluster.Client(t)
	dir := t.TempDir()
	one, two := replica(t, dir, locktest.Client(t, c)), replica(t, dir, locktest.Client(t, c))
	created := request(t, http.MethodPost, one, nil, "Upload-Length", "10")
	require.Equal(t, http.StatusCreated, created.StatusCode)
	url := created.Header.Get("Location")
	id := url[len(one):]

	body, w := io.Pipe()
	defer w.Close()
	patched := make(chan *http.Response, 1)
	go func() {
		patched <- request(t, http.MethodPatch, url, body, "Content-Type", "application/offset+octet-stream", "Upload-Offset", "0")
	}()
	_, err := w.Write([]byte("hello"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { // tusd hears of nothing between its lock and its first read
		f, err := os.Stat(filepath.Join(dir, id))
		return err == nil && f.Size() == 5
	}, harness.Hang, harness.Tick)
	_, err = c.Delete(harness.Ctx(t), harness.Entries(t, c, "uploads/"+id)[0])
	require.NoError(t, err)
	require.Equal(t, http.StatusBadRequest, (<-patched).StatusCode)

	offset := request(t, http.MethodHead, two+id, nil).Header.Get("Upload-Offset")
	require.Equal(t, "5", offset)
	resp := request(t, http.MethodPatch, two+id, http.NoBody, "Content-Type", "application/offset+octet-stream", "Upload-Offset", offset)
	require.Equal(t, http.StatusNoContent, resp.StatusCode)
}
