package relay

import "time"

// random is where a relay's chances come from: numbers from [0, 1). A simulation passes
// one of its own, to run the same schedule again.
type random func() float64

// around is d, and up to as much again.
func (r random) around(d time.Duration) time.Duration {
	return d + time.Duration(r()*float64(d))
}

// shuffle puts numbers in any order.
func (r random) shuffle(numbers []int) {
	for i := len(numbers) - 1; i > 0; i-- {
		j := int(r() * float64(i+1))
		numbers[i], numbers[j] = numbers[j], numbers[i]
	}
}
