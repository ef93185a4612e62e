package otellock_test

import (
	"context"
	"fmt"
	"log"
	"os"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdtest"
	"github.com/etcdlock/etcdlock/otellock"
)

func Example() {
	dir, err := os.MkdirTemp("", "otellock-example-")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cluster, err := etcdtest.New(dir)
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

	exporter := tracetest.NewInMemoryExporter() // a service has one for its OTLP backend
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))

	session, err := etcdlock.NewSession(ctx, client, etcdlock.WithHooks(otellock.Hooks(otellock.WithTracerProvider(provider))))
	if err != nil {
		log.Fatal(err)
	}

	ctx, request := provider.Tracer("example").Start(ctx, "PUT /report")
	err = etcdlock.NewMutex(session, "jobs/report").Do(ctx, func(context.Context, *etcdlock.Held) error { return nil })
	if err != nil {
		log.Fatal(err)
	}
	if err := session.Close(); err != nil { // waits until the hooks were called
		log.Fatal(err)
	}
	request.End()

	for _, span := range exporter.GetSpans() {
		inRequest := span.Parent.SpanID() == request.SpanContext().SpanID()
		fmt.Println(span.Name, "in the request:", inRequest)
		for _, a := range span.Attributes {
			if a.Key == "etcdlock.name" || a.Key == "etcdlock.outcome" {
				fmt.Printf("  %s=%s\n", a.Key, a.Value.AsString())
			}
		}
	}
	// Output:
	// etcdlock.wait in the request: true
	//   etcdlock.name=jobs/report
	//   etcdlock.outcome=granted
	// etcdlock.hold in the request: true
	//   etcdlock.name=jobs/report
	//   etcdlock.outcome=released
	// PUT /report in the request: false
}
