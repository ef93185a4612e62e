package report

import "github.com/etcdlock/etcdlock/bench/measure"

// What is measured with which contenders: P processes with G goroutines each.
var (
	Contenders = shapes(2, 1, 16, 1, 8, 16, 8, 64, 1, 16, 1, 64)
	Handovers  = shapes(2, 1, 8, 16, 1, 16)
	Requests   = shapes(1, 1, 2, 1, 16, 1, 8, 16, 1, 16)
	Readers    = shapes(16, 1, 8, 16, 8, 64)
	OwnNames   = shapes(1, 1, 1, 4, 1, 16, 1, 64, 1, 256)
)

// Sets are how many names are locked together.
var Sets = []int{2, 4, 8}

// shapes makes contenders of pairs of numbers.
func shapes(pg ...int) (all []measure.Contenders) {
	for i := 0; i < len(pg); i += 2 {
		all = append(all, measure.Contenders{Processes: pg[i], Goroutines: pg[i+1]})
	}
	return all
}
