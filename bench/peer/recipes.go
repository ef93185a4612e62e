package peer

import (
	"context"

	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"
)

// Recipes is the RWMutex of etcd's own client library.
func Recipes(clients Clients) Peer {
	return Peer{"recipes", false, func(_ context.Context, i int) (Session, error) {
		s, err := concurrency.NewSession(clients(i), concurrency.WithTTL(ttl))
		return recipesSession{concurrencySession{s}}, err
	}}
}

type recipesSession struct{ concurrencySession }

func (s recipesSession) RWMutex(name string) RWLocker {
	return recipesMutex{recipe.NewRWMutex(s.Session, name)}
}

// recipesMutex ignores the context: recipes offers no way to interrupt a wait.
type recipesMutex struct{ *recipe.RWMutex }

func (l recipesMutex) Lock(context.Context) error    { return l.RWMutex.Lock() }
func (l recipesMutex) Unlock(context.Context) error  { return l.RWMutex.Unlock() }
func (l recipesMutex) RLock(context.Context) error   { return l.RWMutex.RLock() }
func (l recipesMutex) RUnlock(context.Context) error { return l.RWMutex.RUnlock() }
