package keyspace

// Open returns the names that may come again.
func (s *Scan) Open() []string { return s.open }
