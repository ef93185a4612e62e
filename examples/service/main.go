// Command service is a whole service with several replicas: an HTTP API whose requests take a lock
// each, a leader, health checks, metrics, a log, and an end that leaves nothing behind.
//
//	go -C examples run ./service
//
// starts an etcd and two replicas, sends them requests, stops etcd for a while in the middle, and
// checks that nothing was lost and that all goes on. With ETCDCTL_ENDPOINTS it is one replica in
// earnest, at the address LISTEN: see service.go.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/examples/internal/ops"
	"github.com/etcdlock/etcdlock/internal/test/loopback"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run := demonstrate
	if os.Getenv("ETCDCTL_ENDPOINTS") != "" {
		run = serve
	}
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context) error {
	client, err := ops.Client()
	if err != nil {
		return err
	}
	defer client.Close()
	return newService(client, os.Getenv("POD_NAME"), slog.Default()).run(ctx, os.Getenv("LISTEN"))
}

// demonstrate runs two replicas for some seconds.
func demonstrate(ctx context.Context) error {
	cluster, err := etcdtest.New("")
	if err != nil {
		return err
	}
	defer cluster.Close()
	ctx, cancel := context.WithTimeout(ctx, 50*time.Second)
	defer cancel()
	addrs, err := loopback.FreeAddrs(2)
	if err != nil {
		return err
	}
	replicas, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for i, addr := range addrs {
		client, err := cluster.NewClient()
		if err != nil {
			return err
		}
		defer client.Close()
		s := newService(client, fmt.Sprint("replica ", i+1), slog.Default(), etcdlock.WithTTL(2*time.Second))
		wg.Go(func() {
			if err := s.run(replicas, addr); err != nil {
				log.Print(err)
			}
		})
	}
	for _, addr := range addrs {
		if err := await(ctx, "http://"+addr+"/readyz"); err != nil {
			return err
		}
	}

	// Deposits of 1, to both replicas, before, while and after etcd is stopped. Each is repeated until it
	// is answered, and so may be made more than once; but none that was answered is lost.
	const deposits = 60
	for i := range deposits {
		if i == deposits/3 {
			log.Print("etcd is stopped for three seconds, which is longer than the TTL")
			cluster.Member(0).Kill()
			time.AfterFunc(3*time.Second, func() {
				if err := cluster.Member(0).Restart(ctx); err != nil {
					log.Print(err)
				}
			})
		}
		if err := deposit(ctx, addrs[i%2]); err != nil {
			return err
		}
	}
	balance, err := post(ctx, "http://"+addrs[0]+"/accounts/ann/deposits?amount=0")
	if err != nil {
		return err
	}
	log.Printf("%d deposits were answered, the balance is %d", deposits, balance)
	if balance < deposits {
		return errors.New("deposits were lost")
	}
	for _, addr := range addrs {
		if err := await(ctx, "http://"+addr+"/readyz"); err != nil {
			return err
		}
	}

	stop()
	wg.Wait()
	client, err := cluster.NewClient()
	if err != nil {
		return err
	}
	defer client.Close()
	for name, err := range etcdlock.New(client).ListNames(ctx, "service/") {
		return errors.Join(fmt.Errorf("an entry of %q is left", name), err)
	}
	log.Print("the replicas have ended, and left nothing behind")
	return nil
}

// await asks until the answer is that all is well.
func await(ctx context.Context, url string) error {
	return repeat(ctx, func() error {
		resp, err := http.Get(url)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = errors.New(string(text))
		}
		return err
	})
}

func deposit(ctx context.Context, addr string) error {
	return repeat(ctx, func() error {
		_, err := post(ctx, "http://"+addr+"/accounts/ann/deposits?amount=1")
		return err
	})
}

func post(ctx context.Context, url string) (balance int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return 0, err
	case resp.StatusCode != http.StatusOK:
		return 0, errors.New(string(text))
	}
	var answer struct{ Balance int64 }
	err = json.Unmarshal(text, &answer)
	return answer.Balance, err
}

// repeat calls f until it succeeds, or ctx ends.
func repeat(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}
