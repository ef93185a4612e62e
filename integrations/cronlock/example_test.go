package cronlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/integrations/cronlock"
)

func Example() {
	cluster, err := etcdtest.New("")
	if err != nil {
		log.Fatal(err)
	}
	defer cluster.Close()
	client, err := cluster.NewClient()
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
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
