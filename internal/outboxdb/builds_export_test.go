package outboxdb

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybill-go/waybill/internal/relay"
)

// Build is the store of an earlier build: its statements, where they were other ones, in the
// code that ran them.
type Build struct {
	*Store

	join, renew, take, release, claim, settle, reap step
}

// Earlier is the store as a build had it that knew so many versions of the tables; testdata
// has what was different.
func Earlier(s *Store, knew int) (*Build, error) {
	b := &Build{s, joinStep, renewStep, takeStep, releaseStep, claimStep, settleStep, reapStep}
	database := map[bool]string{true: "sqlite", false: "postgres"}[s.sqlite()]
	versions, err := os.ReadDir(filepath.Join("migrations", database))
	if err != nil {
		return nil, err
	}
	// What a build has no text of is as in the next newer one.
	for n := len(versions); n >= knew; n-- {
		if err := b.load(filepath.Join("testdata", "builds", strconv.Itoa(n), database)); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (b *Build) load(folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*.sql"))
	if err != nil {
		return err
	}
	for _, file := range files {
		sql, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		of := map[string]*step{"join.sql": &b.join, "renew.sql": &b.renew, "take.sql": &b.take, "release.sql": &b.release, "claim.sql": &b.claim, "settle.sql": &b.settle, "reap.sql": &b.reap}[filepath.Base(file)]
		all := strings.Split(strings.TrimSuffix(strings.TrimSpace(string(sql)), ";"), ";\n")
		of.postgres, of.sqlite = all, all
	}
	return nil
}

// Join was this until build 8.
func (b *Build) Join(ctx context.Context, name string, lanes []relay.Joining, lease time.Duration) ([]relay.MemberID, error) {
	if slices.Equal(b.join.postgres, joinStep.postgres) {
		return b.Store.Join(ctx, name, lanes, lease)
	}
	members, ids := make([]relay.MemberID, len(lanes)), make([]int64, len(lanes))
	for i, l := range lanes {
		ids[i] = int64(l.Lane)
	}
	return members, b.do(ctx, durable, b.join, statement{values: []any{ids, name, lease}, row: func(r result) error {
		members[slices.Index(ids, r.number(0))] = relay.MemberID(r.number(1))
		return nil
	}})
}

// Renew was this until build 9.
func (b *Build) Renew(ctx context.Context, renewals []relay.Renewal, lease time.Duration) (renewed []relay.Renewed, err error) {
	members, healthy, troubles := make([]int64, len(renewals)), make([]bool, len(renewals)), make([]string, len(renewals))
	for i, r := range renewals {
		members[i], healthy[i], troubles[i] = int64(r.Member), r.Healthy, r.Trouble
	}
	return renewed, b.do(ctx, keeps, b.renew, statement{values: []any{members, healthy, troubles, lease}, row: func(r result) error {
		renewed = append(renewed, relay.Renewed{Member: relay.MemberID(r.number(0))})
		return nil
	}}, statement{values: []any{members}, row: func(r result) error {
		i := slices.IndexFunc(renewed, func(of relay.Renewed) bool { return of.Member == relay.MemberID(r.number(0)) })
		renewed[i].Parts = append(renewed[i].Parts, int(r.number(1)))
		slices.Sort(renewed[i].Parts)
		return nil
	}})
}

// Take didn't ask until build 8 whether the server has crashed.
func (b *Build) Take(ctx context.Context, m relay.MemberID, lane relay.LaneID, n int) ([]int, error) {
	return b.Store.take(ctx, b.take, m, lane, n)
}

// Release didn't either.
func (b *Build) Release(ctx context.Context, m relay.MemberID, lane relay.LaneID, parts []int) error {
	return b.Store.release(ctx, b.release, m, lane, parts)
}

// Claim didn't either, and until build 9 it read a row and its message at once.
func (b *Build) Claim(ctx context.Context, q relay.ClaimRequest) (c relay.Claim, err error) {
	member := int64(q.Member)
	if len(q.Forget) > 0 {
		if err := b.forget(ctx, member, q.Forget); err != nil {
			return c, err
		}
	}
	parts, seqs, keys := bySeq(q.Rows)
	return c, b.do(ctx, lasting(q.Durable), b.claim,
		statement{values: []any{member, q.N, seqs}, must: true, row: func(result) error { c.Alive = true; return nil }},
		statement{values: []any{member, q.N, int64(q.Lane), parts, seqs, keys}, row: func(r result) error {
			row, err := claimedAtOnce(r)
			c.Rows = append(c.Rows, row)
			slices.SortFunc(c.Rows, func(a, b relay.Claimed) int { return cmp.Compare(a.Seq, b.Seq) })
			return err
		}})
}

// LookAndClaim was two steps.
func (b *Build) LookAndClaim(ctx context.Context, r relay.LookRequest) (relay.Looked, error) {
	return b.lookThenClaim(ctx, r, b.Claim)
}

func claimedAtOnce(r result) (c relay.Claimed, err error) {
	c = relay.Claimed{Seq: r.number(1), KeyHash: r.number(2), Attempts: int(r.number(3)), Losses: int(r.number(4)), Waits: r.yes(5)}
	c.Partition = int(r.number(0))
	if c.MessageID, err = r.uuid(6); err != nil {
		return c, err
	}
	c.StreamCategory, c.Topic, c.PartitionKey, c.MessageType, c.Payload = r.text(7), r.text(8), r.text(9), r.text(10), r.bytes(11)
	c.ContentType, c.CloudEvent, c.CorrelationID, c.TenantID, c.Traceparent = r.text(12), r.text(13), r.text(14), r.text(15), r.text(16)
	for i, t := range []*time.Time{&c.OccurredAt, &c.CreatedAt} {
		if *t, err = r.time(17 + i); err != nil {
			return c, err
		}
	}
	return c, nil
}

// Settle joined each message that it deletes until build 9. The short form, of what is
// published alone, is part of the long one.
func (b *Build) Settle(ctx context.Context, w relay.Settlement) (known bool, err error) {
	if b.sqlite() || slices.Equal(b.settle.postgres, settleStep.postgres) {
		return b.Store.Settle(ctx, w)
	}
	values := append(append([]any{int64(w.Member), w.N}, b.published(w)...), failed(w.Failed)...)
	values = append(append(values, refs(w.Lost)...), abandoned(w.Abandoned)...)
	return known, b.do(ctx, durable, b.settle, statement{values: values, row: func(result) error { known = true; return nil }})
}

// ReapBlindly is the reap of build 3, which knew nothing of transactions.
func (b *Build) ReapBlindly(ctx context.Context, m relay.MemberID) (parts int, err error) {
	member := []any{int64(m)}
	mark, plain := statement{values: []any{int64(m), false}, must: true}, statement{values: member}
	freed := statement{values: member, row: func(result) error { parts++; return nil }}
	runs := []statement{{values: mark.values}, mark, plain, freed}
	if b.sqlite() {
		runs = []statement{mark, plain, plain, freed, plain}
	}
	return parts, b.do(ctx, durable, b.reap, runs...)
}
