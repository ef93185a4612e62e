package tuslock_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"
	"golang.org/x/exp/slog"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/integrations/internal/locktest"
	"github.com/etcdlock/etcdlock/integrations/tuslock"
)

// replica is one of several servers that keep uploads in dir.
func replica(dir string, locks *etcdlock.Client) *httptest.Server {
	composer := handler.NewStoreComposer()
	filestore.New(dir).UseIn(composer)
	tuslock.New(locks, "uploads/").UseIn(composer)
	h, err := handler.NewHandler(handler.Config{
		BasePath: "/files/", StoreComposer: composer, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		GracefulRequestCompletionTimeout: 100 * time.Millisecond, // for this example: a goroutine of each request lasts as long
	})
	if err != nil {
		log.Fatal(err)
	}
	return httptest.NewServer(http.StripPrefix("/files/", h))
}

func send(method, url string, body io.Reader, header map[string]string) *http.Response {
	req, err := http.NewRequestWithContext(context.Background(), method, url, body)
	if err != nil {
		log.Fatal(err)
	}
	req.Header.Set("Tus-Resumable", "1.0.0")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		log.Fatal(err)
	}
	resp.Body.Close()
	return resp
}

// The connection of an upload is stuck. Its client asks another replica how much has arrived, and has the answer at
// once: the first replica stores what it has, and lets go of the lock.
func Example() {
	client, stop := locktest.Etcd()
	defer stop()
	dir, err := os.MkdirTemp("", "tuslock-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	locks, others := etcdlock.New(client), etcdlock.New(client) // of two processes
	defer locks.Close()
	defer others.Close()
	one, two := replica(dir, locks), replica(dir, others)
	defer one.Close()
	defer two.Close()

	upload := send(http.MethodPost, one.URL+"/files/", nil, map[string]string{"Upload-Length": "10"}).Header.Get("Location")
	stuck, rest := io.Pipe() // the rest never comes
	done := make(chan struct{})
	go func() {
		defer close(done)
		send(http.MethodPatch, upload, io.MultiReader(bytes.NewBufferString("hello"), stuck),
			map[string]string{"Content-Type": "application/offset+octet-stream", "Upload-Offset": "0"})
	}()
	for range time.Tick(5 * time.Millisecond) { // until the first replica has stored the beginning
		if f, err := os.Stat(filepath.Join(dir, path.Base(upload))); err == nil && f.Size() == 5 {
			break
		}
	}
	there := send(http.MethodHead, two.URL+upload[len(one.URL):], nil, nil)
	fmt.Println("bytes that have arrived:", there.Header.Get("Upload-Offset"))
	rest.Close()
	<-done
	// Output: bytes that have arrived: 5
}
