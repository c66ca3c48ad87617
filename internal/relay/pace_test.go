package relay

import (
	"testing"
	"time"
)

func TestPace_RestsWhereTheMachineIsBusy(t *testing.T) {
	var p pace
	looks := func(n int, took time.Duration) {
		for n := range n {
			p.looked(n%2 == 0, took)
		}
	}
	between := func(when string, rows int, least, most time.Duration) {
		t.Helper()
		if r := p.rest(rows); r < least || r > most {
			t.Errorf("%s it rests for %v after %d rows, not for %v to %v", when, r, rows, least, most)
		}
	}
	between("before the first look", 100, 0, 0)
	looks(100, time.Millisecond)
	between("while all looks are like the best", 100, 0, 0)
	looks(1, time.Minute)
	between("after one slow look", 1, 0, time.Millisecond)
	looks(100, 2*time.Millisecond)
	between("while looks wait a little", 2, 0, time.Millisecond)
	looks(200, 5*time.Millisecond)
	between("while looks wait", 1, 500*time.Microsecond, 2*time.Millisecond)
	between("while looks wait", 20, 10*time.Millisecond, 40*time.Millisecond)
	between("while looks wait", 10_000, paceMax, paceMax)
	looks(1<<17, 5*time.Millisecond)
	between("on a machine that is as slow as this for good", 100, 0, 0)
}
