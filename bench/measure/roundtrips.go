package measure

import "time"

// RoundTrips is the number of network round trips between members in a quantity. It
// is computed from how much longer the quantity takes when each round trip takes
// longer. set sets the time of a round trip, and measure measures the quantity.
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
