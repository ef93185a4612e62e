// What JSON has of an entry in other forms than Go.

package inspect

import (
	"cmp"
	"errors"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// JSON is what stands in the JSON of an entry beside its plain fields: the lease in hex, as etcd's own tools have it
// (and as a number it would lose digits in most readers), the TTLs in seconds.
type JSON struct {
	Names      []string `json:"names,omitempty"`
	Lease      string   `json:"lease,omitempty"`
	TTL        int64    `json:"ttl"`
	GrantedTTL int64    `json:"grantedTTL"`
}

// ToJSON puts the fields of an entry into that form. names have a line feed between them.
func ToJSON(names string, lease clientv3.LeaseID, ttl, granted time.Duration) JSON {
	j := JSON{TTL: int64(ttl / time.Second), GrantedTTL: int64(granted / time.Second)}
	if names != "" {
		j.Names = strings.Split(names, "\n")
	}
	if lease != clientv3.NoLease {
		j.Lease = strconv.FormatInt(int64(lease), 16)
	}
	return j
}

// Values are the fields of the entry.
func (j JSON) Values() (names string, lease clientv3.LeaseID, ttl, granted time.Duration, err error) {
	id, err := strconv.ParseInt(cmp.Or(j.Lease, "0"), 16, 64)
	if err != nil {
		err = errors.New("etcdlock: lease " + strconv.Quote(j.Lease) + " of an entry is not hex")
	}
	return strings.Join(j.Names, "\n"), clientv3.LeaseID(id), time.Duration(j.TTL) * time.Second, time.Duration(j.GrantedTTL) * time.Second, err
}
