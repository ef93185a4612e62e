package promlock

// An Option changes what New makes.
type Option interface{ apply(*config) }

type config struct {
	name    func(lock string) string
	buckets []float64
}

type option func(*config)

func (f option) apply(c *config) { f(c) }

// defaultBuckets reach from a hand-over, about 1 ms, to a wait that somebody
// should have ended.
var defaultBuckets = []float64{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300}

// WithName sets the value of the label name for each lock. The default is the
// lock's name. If lock names are made from data, let f map them to a few, such as
// "orders/4711" to "orders". Where f returns "", the label is left out. f is called
// several times for each acquisition, concurrently, and must always return the same
// value for the same lock. What is not UTF-8 in the value is replaced. A nil f changes nothing.
func WithName(f func(lock string) string) Option {
	return option(func(c *config) {
		if f != nil {
			c.name = f
		}
	})
}

// WithBuckets sets the upper bounds of the classic buckets, in seconds. Each bucket
// costs one more series for each name and outcome. Without any, the histograms are
// native only, and a Prometheus that does not scrape native histograms sees counts
// and sums alone.
func WithBuckets(bounds ...float64) Option {
	return option(func(c *config) { c.buckets = bounds })
}
