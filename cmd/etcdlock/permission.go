package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// suggestPrefix says, if etcd refuses to list the keys below prefix, which keys the
// user may list.
func suggestPrefix(ctx context.Context, client *clientv3.Client, user, prefix string, err error) error {
	if !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return err
	}
	who, may := "this user", []string(nil)
	if user != "" {
		who, may = "user "+user, readable(ctx, client, user)
	}
	what := "all keys"
	if prefix != "" {
		what = "all keys that start with " + strconv.Quote(prefix)
	}
	// Prefer what lies below the prefix that was asked for.
	if within := slices.DeleteFunc(slices.Clone(may), func(p string) bool { return !strings.HasPrefix(p, prefix) }); len(within) > 0 {
		may = within
	}
	const some = 3
	var try []string
	for _, p := range may[:min(len(may), some)] {
		try = append(try, "etcdlock ls "+argument(p))
	}
	switch {
	case len(try) == 0:
		return fmt.Errorf("%s may not read %s: give a prefix that its role covers, such as: etcdlock ls jobs/", who, what)
	case len(may) > some:
		try = append(try, fmt.Sprintf("and %d more", len(may)-some))
	}
	return fmt.Errorf("%s may not read %s; its role allows: %s", who, what, strings.Join(try, ", "))
}

// readable lists the prefixes that a user may read. Every user may read its own roles.
// After an error the list is empty.
func readable(ctx context.Context, client *clientv3.Client, user string) (prefixes []string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	u, err := client.UserGet(ctx, user)
	if err != nil {
		return nil
	}
	for _, name := range u.Roles {
		role, err := client.RoleGet(ctx, name)
		if err != nil {
			continue
		}
		for _, p := range role.Perm {
			from := string(p.Key)
			if p.PermType != authpb.WRITE && string(p.RangeEnd) == clientv3.GetPrefixRangeEnd(from) {
				prefixes = append(prefixes, from)
			}
		}
	}
	slices.Sort(prefixes)
	return slices.Compact(prefixes)
}
