package gocronlock_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/integrations/gocronlock"
	"github.com/etcdlock/etcdlock/integrations/internal/locktest"
)

func ExampleElector() {
	client, stop := locktest.Etcd()
	defer stop()
	locks := etcdlock.New(client)
	defer locks.Close()

	elector := gocronlock.NewElector(locks, "scheduler")
	ctx, resign := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- elector.Run(ctx) }()

	scheduler, err := gocron.NewScheduler(gocron.WithDistributedElector(elector))
	if err != nil {
		log.Fatal(err)
	}
	ran := make(chan struct{})
	var once sync.Once // for this example
	report := elector.Task(func(context.Context) error {
		once.Do(func() { fmt.Println("report"); close(ran) })
		return nil
	})
	if _, err := scheduler.NewJob(gocron.DurationJob(50*time.Millisecond), gocron.NewTask(report)); err != nil {
		log.Fatal(err)
	}
	scheduler.Start()
	<-ran

	fmt.Println(scheduler.Shutdown()) // first, so that no job runs when another replica leads
	resign()
	fmt.Println(<-done)
	// Output:
	// report
	// <nil>
	// <nil>
}

func ExampleLocker() {
	client, stop := locktest.Etcd()
	defer stop()

	done := make(chan struct{}, 2)
	for range 2 { // replicas
		locks := etcdlock.New(client)
		defer locks.Close()
		locker := gocronlock.NewLocker(locks, "jobs/", time.Minute)
		scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
		if err != nil {
			log.Fatal(err)
		}
		defer func() { _ = scheduler.Shutdown() }()
		report := locker.Task("report", func(context.Context) error {
			fmt.Println("report")
			done <- struct{}{}
			return nil
		})
		if _, err := scheduler.NewJob(gocron.DurationJob(50*time.Millisecond), gocron.NewTask(report), gocron.WithName("report")); err != nil {
			log.Fatal(err)
		}
		scheduler.Start()
	}
	<-done
	// Output: report
}
