package report

import (
	"time"

	"github.com/etcdlock/etcdlock/bench/measure"
)

// What is measured with which contenders: P processes with G goroutines each.
var (
	Contenders = shapes(2, 1, 16, 1, 8, 16, 8, 64, 1, 16, 1, 64)
	Handovers  = shapes(2, 1, 8, 16, 1, 16)
	Requests   = shapes(1, 1, 2, 1, 16, 1, 8, 16, 1, 16)
	Readers    = shapes(16, 1, 8, 16, 8, 64)
)

// Names are the contenders that lock many names.
var Names = names()

func names() (all []measure.Names) {
	for _, c := range shapes(1, 1, 1, 2, 1, 4, 1, 8, 1, 16, 1, 64, 1, 256) {
		all = append(all, measure.Names{Contenders: c})
	}
	for _, n := range []int{1024, 64, 16} {
		all = append(all, measure.Names{Contenders: measure.Contenders{Processes: 8, Goroutines: 16}, Among: n})
	}
	for _, c := range shapes(1, 2, 1, 4) {
		all = append(all, measure.Names{Contenders: c, Pause: time.Millisecond})
	}
	return all
}

// Sets are how many names are locked together.
var Sets = []int{2, 4, 8}

// shapes makes contenders of pairs of numbers.
func shapes(pg ...int) (all []measure.Contenders) {
	for i := 0; i < len(pg); i += 2 {
		all = append(all, measure.Contenders{Processes: pg[i], Goroutines: pg[i+1]})
	}
	return all
}
