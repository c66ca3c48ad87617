package subscription

import (
	"context"
	"fmt"
)

// CountOpen counts the dead letters that are open, by subscription, for those that
// have some. An index answers it.
func (s *DeadLetters) CountOpen(ctx context.Context) (map[string]int64, error) {
	counts := map[string]int64{}
	err := eachRow(ctx, s.provider.Reader(), func(scan func(...any) error) error {
		var name string
		var n int64
		err := scan(&name, &n)
		counts[name] = n
		return err
	}, "SELECT d.subscription, count(*) FROM dead_letters AS d WHERE "+isOpen+" GROUP BY 1")
	if err != nil {
		return nil, fmt.Errorf("subscription: count dead letters: %w", err)
	}
	return counts, nil
}
