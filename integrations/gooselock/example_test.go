package gooselock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log"

	"github.com/pressly/goose/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/integrations/gooselock"
	"github.com/etcdlock/etcdlock/integrations/internal/locktest"
)

func Example() {
	client, stop := locktest.Etcd()
	defer stop()
	db := sql.OpenDB(noDatabase{})
	defer db.Close()
	ctx := context.Background()

	locks := etcdlock.New(client)
	defer locks.Close()
	migration := goose.NewGoMigration(1, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
		queue, err := locks.Inspect(ctx, "migrations/shop")
		fmt.Println("migrating, holders in etcd:", len(queue.Entries))
		return err
	}}, nil)
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, nil,
		goose.WithLocker(gooselock.New(locks, "migrations/shop")),
		goose.WithGoMigrations(migration),
		goose.WithDisableGlobalRegistry(true), goose.WithDisableVersioning(true))
	if err != nil {
		log.Fatal(err)
	}
	results, err := provider.Up(ctx)
	fmt.Println(len(results), err)
	// Output:
	// migrating, holders in etcd: 1
	// 1 <nil>
}

// noDatabase is a database that has only transactions, with nothing in them.
type noDatabase struct{}

func (d noDatabase) Connect(context.Context) (driver.Conn, error) { return d, nil }
func (d noDatabase) Driver() driver.Driver                        { return nil }
func (d noDatabase) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("no statements") }
func (d noDatabase) Begin() (driver.Tx, error)                    { return d, nil }
func (d noDatabase) Commit() error                                { return nil }
func (d noDatabase) Rollback() error                              { return nil }
func (d noDatabase) Close() error                                 { return nil }
