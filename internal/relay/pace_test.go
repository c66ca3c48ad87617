package relay

import (
	"testing"
	"time"
)

func TestPace_RestsOnlyWhereTheMachineIsBusy(t *testing.T) {
	var p pace
	looks := func(n int, took time.Duration) {
		for range n {
			p.looked(took)
		}
	}
	if r := p.rest(); r != 0 {
		t.Fatalf("it rests for %v before the first look", r)
	}
	looks(100, time.Millisecond)
	if looks(1, time.Minute); p.rest() != 0 {
		t.Errorf("one slow look makes it rest for %v", p.rest())
	}
	looks(100, 2*time.Millisecond)
	if r := p.rest(); r != 0 {
		t.Errorf("it rests for %v though looks take about as long as the best", r)
	}
	looks(200, 5*time.Millisecond)
	if r := p.rest(); r < 20*time.Millisecond || r > paceMax {
		t.Errorf("it rests for %v while looks take five times as long as the best", r)
	}
	looks(200, time.Second)
	if r := p.rest(); r != paceMax {
		t.Errorf("it rests for %v, not for %v at most", r, paceMax)
	}
	looks(1<<17, 5*time.Millisecond)
	if r := p.rest(); r != 0 {
		t.Errorf("a machine that is as slow as this for good isn't busy, and it rests for %v", r)
	}
}
