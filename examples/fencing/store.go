//go:build unix

package main

import (
	"net"
	"net/rpc"
	"sync"
)

// Store is a database with one report, reached over the network. It knows nothing of
// locks. It only remembers the highest token that it has seen, and refuses lower tokens:
//
//	UPDATE reports SET body = $1, token = $2 WHERE name = 'daily' AND token <= $2
type Store struct {
	mu    sync.Mutex
	body  string
	token int64
}

// Row is the text that a writer wants to write, and the token of the writer's lock.
type Row struct {
	Body  string
	Token int64
}

// Update executes the statement above; rows is the number of rows that it changed.
func (s *Store) Update(r Row, rows *int) error {
	*rows = s.update(r.Body, r.Token)
	return nil
}

func (s *Store) update(body string, token int64) (rows int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token > token {
		return 0
	}
	s.body, s.token = body, token
	return 1
}

func (s *Store) read() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.body
}

// serve starts a store that runs until its listener is closed.
func serve(l net.Listener) *Store {
	s := &Store{}
	server := rpc.NewServer()
	if err := server.Register(s); err != nil {
		panic("bug: " + err.Error())
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go server.ServeConn(conn)
		}
	}()
	return s
}

// update updates the report in the store at addr.
func update(addr, body string, token int64) (rows int, err error) {
	client, err := rpc.Dial("tcp", addr)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	err = client.Call("Store.Update", Row{body, token}, &rows)
	return rows, err
}
