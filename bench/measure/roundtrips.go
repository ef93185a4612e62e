package measure

import "time"

// RoundTrips is how many network round trips between the members a quantity
// consists of: how much longer it takes when each of them takes longer. set sets
// the time of one, measure takes the quantity.
func RoundTrips(set func(roundTrip time.Duration), measure func() (Values, error)) (Values, error) {
	const short, long = 2 * time.Millisecond, 8 * time.Millisecond
	set(short)
	a, err := measure()
	if err != nil {
		return nil, err
	}
	set(long)
	b, err := measure()
	set(short)
	if err != nil {
		return nil, err
	}
	return Values{
		"round_trips": (b["p50_us"] - a["p50_us"]) / micros(long-short),
		"p50_us":      a["p50_us"],
		"overlaps":    a["overlaps"] + b["overlaps"],
	}, nil
}
