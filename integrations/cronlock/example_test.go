package cronlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/integrations/cronlock"
	"github.com/etcdlock/etcdlock/integrations/internal/locktest"
)

func Example() {
	client, stop := locktest.Etcd()
	defer stop()
	ctx := context.Background()

	struck := make(chan struct{}, 2)
	for range 2 { // replicas
		locks := etcdlock.New(client)
		defer locks.Close()
		once := cronlock.SkipIfLocked(ctx, locks.Mutex("jobs/report"), time.Minute, cron.DefaultLogger)
		c := cron.New()
		job := cron.NewChain(once).Then(cron.FuncJob(func() { fmt.Println("report") }))
		if _, err := c.AddFunc("@every 1s", func() { job.Run(); struck <- struct{}{} }); err != nil {
			log.Fatal(err)
		}
		c.Start()
		defer func() { <-c.Stop().Done() }()
	}
	<-struck
	<-struck
	// Output: report
}
