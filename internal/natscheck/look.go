// Package natscheck says what is wrong with the streams and consumers that contexts have on
// NATS JetStream.
package natscheck

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybill-go/waybill/internal/doctor"
)

// patience is how long a server may take for all that it is asked.
const patience = 15 * time.Second

// Needs are what the contexts of a configuration do with one broker.
type Needs struct {
	Prefix   string   // Of all topics.
	Contexts []string // Whose streams are published there.
	Topics   []string // That are published or consumed there, under these names.
	// MaxMessage is how many bytes a message may have, with its headers; 0: not known.
	MaxMessage int
}

// Look says what is wrong with the streams that n needs.
func Look(ctx context.Context, nc *nats.Conn, n Needs) []doctor.Finding {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %v", patience))
	defer cancel()
	js, err := jetstream.New(nc)
	if err != nil {
		return []doctor.Finding{Unreached(err)}
	}
	refused := listen(nc)
	var streams []*jetstream.StreamInfo
	var missing []doctor.Finding
	err = refused.during(ctx, func(ctx context.Context) (err error) {
		streams, missing, err = n.streams(ctx, js)
		return err
	})
	if err != nil {
		return []doctor.Finding{Unreached(err)}
	}
	all := []doctor.Finding{{Check: "connection", Severity: doctor.OK, What: fmt.Sprintf("it answers; of the streams that are needed it shows %d", len(streams))}}
	if limit := nc.MaxPayload(); n.MaxMessage > 0 && limit < int64(n.MaxMessage) {
		all = append(all, doctor.Finding{
			Check: "max_payload", Severity: doctor.Critical, What: fmt.Sprintf("the server takes messages of %d bytes, and a message may have %d with its headers: larger ones are abandoned", limit, n.MaxMessage),
			Remedy: fmt.Sprintf("set max_payload of the server to %d at least, or lower outbox.max_message_bytes", n.MaxMessage),
		})
	}
	all = append(all, missing...)
	for _, s := range streams {
		all = append(all, Judge(s)...)
	}
	all = append(all, n.groups(ctx, js, refused, streams)...)
	_ = refused.during(ctx, func(ctx context.Context) error { // which not every user may ask
		account, err := js.AccountInfo(ctx)
		if err == nil {
			all = append(all, JudgeAccount(account)...)
		}
		return err
	})
	return all
}

// groups says who gets nothing, and whose messages nobody handles.
func (n Needs) groups(ctx context.Context, js jetstream.JetStream, refused *refusals, streams []*jetstream.StreamInfo) (all []doctor.Finding) {
	err := refused.during(ctx, func(ctx context.Context) error {
		var errs []error
		for _, s := range streams {
			found, err := paused(ctx, js, s.Config.Name)
			all, errs = append(all, found...), append(errs, err)
		}
		found, err := n.unheard(ctx, js)
		all = append(all, found...)
		return errors.Join(append(errs, err)...)
	})
	if err != nil {
		line, _, _ := strings.Cut(err.Error(), "\n")
		all = append(all, doctor.Finding{
			Check: "consumers", Severity: doctor.Warning, What: "they can't all be seen: " + line,
			Remedy: "give the user the right to ask $JS.API.STREAM.NAMES, $JS.API.STREAM.INFO.* and $JS.API.CONSUMER.LIST.*",
		})
	}
	return all
}

// Unreached is that a server tells nothing.
func Unreached(err error) doctor.Finding {
	f := doctor.Finding{Check: "connection", Severity: doctor.Critical, What: "it doesn't answer: " + err.Error(), Remedy: "see that it runs, and correct url, credentials or nkey in the configuration"}
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		f.What, f.Remedy = "it refuses the login: "+err.Error(), "correct the user and password in url, or the files that credentials or nkey name"
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount), errors.Is(err, nats.ErrNoResponders):
		f.What, f.Remedy = "it has no JetStream for this account: "+err.Error(), "start the server with jetstream, and enable it for the account"
	case errors.Is(err, nats.ErrPermissionViolation):
		f.What, f.Remedy = "it refuses what is asked: "+err.Error(), "give this login the right, or take one that has it: the rights of doctor are in the guide to NATS in production"
	}
	return f
}

// streams are those that hold what n needs, by name, and what is missing.
func (n Needs) streams(ctx context.Context, js jetstream.JetStream) (streams []*jetstream.StreamInfo, missing []doctor.Finding, err error) {
	seen := map[string]bool{}
	find := func(subject string) (int, error) {
		list := js.ListStreams(ctx, jetstream.WithStreamListSubject(subject))
		found := 0
		for s := range list.Info() {
			found++
			if !seen[s.Config.Name] {
				seen[s.Config.Name] = true
				streams = append(streams, s)
			}
		}
		return found, list.Err()
	}
	for _, c := range sorted(n.Contexts) {
		found, err := find(n.Prefix + c + ".>")
		if err != nil {
			return nil, nil, err
		}
		if found == 0 {
			missing = append(missing, doctor.Finding{
				Check: "streams", Severity: doctor.Warning, Where: n.Prefix + c + ".>", What: "no stream has a subject of " + c,
				Remedy: "an engine makes them when it starts, if its user may; otherwise make one: nats stream add",
			})
		}
	}
	for _, t := range sorted(n.Topics) {
		found, err := find(n.Prefix + t)
		if err != nil {
			return nil, nil, err
		}
		if found == 0 {
			missing = append(missing, doctor.Finding{
				Check: "stream", Severity: doctor.Warning, Where: n.Prefix + t, What: "no stream has this subject",
				Remedy: "make one: nats stream add; an engine that publishes there, or a subscription that reads it, makes one if its user may",
			})
		}
	}
	slices.SortFunc(streams, func(a, b *jetstream.StreamInfo) int { return strings.Compare(a.Config.Name, b.Config.Name) })
	return streams, missing, nil
}

func sorted(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }

// almost is the part of a limit from which on it is said.
const almost = 0.9

// JudgeAccount says which limits of an account are nearly reached.
func JudgeAccount(a *jetstream.AccountInfo) (all []doctor.Finding) {
	tiers := map[string]jetstream.Tier{"": a.Tier}
	maps.Copy(tiers, a.Tiers)
	for name, t := range tiers {
		where := ""
		if name != "" {
			where = "tier " + name
		}
		if most := t.Limits.MaxStore; most > 0 && float64(t.Store) >= almost*float64(most) {
			all = append(all, doctor.Finding{
				Check: "account", Severity: doctor.Critical, Where: where, What: fmt.Sprintf("%d of %d bytes on disk are used: when it is full nothing is published", t.Store, most),
				Remedy: "raise the account's limit, or give streams a max_age that subscriptions keep up with",
			})
		}
	}
	return all
}
