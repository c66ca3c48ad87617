package engine

import (
	"log/slog"
	"maps"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/waybill-go/waybill/command"
	"github.com/waybill-go/waybill/internal/buildinfo"
	"github.com/waybill-go/waybill/internal/timerdb"
	"github.com/waybill-go/waybill/outbox"
	"github.com/waybill-go/waybill/subscription"
)

// newMetrics answers a scrape by Prometheus. Its registry is the engine's own.
func newMetrics(e *Engine) http.HandlerFunc {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), &collector{e})
	h := promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog:      slog.NewLogLogger(e.log.Handler(), slog.LevelWarn),
		ErrorHandling: promhttp.ContinueOnError,
	})
	return func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		h.ServeHTTP(w, r)
	}
}

// metric is one number of T, under one name.
type metric[T any] struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(T) float64
}

func gauge[T any](name, help string, value func(T) float64, labels ...string) metric[T] {
	return metric[T]{describe(name, help, prometheus.GaugeValue, labels), prometheus.GaugeValue, value}
}

func counter[T any](name, help string, value func(T) float64, labels ...string) metric[T] {
	return metric[T]{describe(name, help, prometheus.CounterValue, labels), prometheus.CounterValue, value}
}

// histogram has no value of its own kind in OpenTelemetry that could be asked for.
// There it is what Prometheus makes of it: three counters.
func histogram(name, help string, labels ...string) *prometheus.Desc {
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		describe(name+part, help, prometheus.CounterValue, labels)
	}
	return prometheus.NewDesc(name, help, labels, nil)
}

// described are all metrics below, which OpenTelemetry wants to know beforehand.
var described []description

type description struct {
	name, help string
	kind       prometheus.ValueType
}

func describe(name, help string, kind prometheus.ValueType, labels []string) *prometheus.Desc {
	described = append(described, description{name, help, kind})
	return prometheus.NewDesc(name, help, labels, nil)
}

func (m metric[T]) send(to chan<- prometheus.Metric, of T, labels ...string) {
	c, err := prometheus.NewConstMetric(m.desc, m.kind, m.value(of), labels...)
	if err != nil {
		c = prometheus.NewInvalidMetric(m.desc, err)
	}
	to <- c
}

func sendHistogram(to chan<- prometheus.Metric, desc *prometheus.Desc, l outbox.Latencies, labels ...string) {
	h, err := prometheus.NewConstHistogram(desc, l.Count, l.Sum.Seconds(), l.Buckets, labels...)
	if err != nil {
		h = prometheus.NewInvalidMetric(desc, err)
	}
	to <- h
}

func send[T any](to chan<- prometheus.Metric, metrics []metric[T], of T, labels ...string) {
	for _, m := range metrics {
		m.send(to, of, labels...)
	}
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// What there is to count. Names of providers, brokers and subscriptions, and codes of health, are the
// only labels: there are few, and messages bring no new ones.
var (
	built       = gauge("waybill_build_info", "1, with the version of Waybill, the commit where it is known, and the version of Go as labels.", bit, "version", "revision", "go")
	ready       = gauge("waybill_ready", "1 while /readyz says that the process can work.", bit)
	providerUp  = gauge("waybill_provider_up", "1 if the database answers and its tables are right.", bit, "provider")
	brokerUp    = gauge("waybill_broker_up", "1 if the broker answers: its topics were made, and no lane's breaker is open.", bit, "broker")
	counted     = gauge("waybill_outbox_counted", "1 if this scrape has the outbox's numbers; the database did not answer in time otherwise.", bit, "provider")
	deadLetters = gauge("waybill_dead_letters", "Messages that a subscription could not handle, and those behind them, not yet replayed or discarded.",
		func(n int64) float64 { return float64(n) }, "provider", "subscription")
	lettersWaiting = gauge("waybill_dead_letters_waiting", "Messages that wait in the same table for their time, and those behind them: they continue by themselves.",
		func(n int64) float64 { return float64(n) }, "provider", "subscription")

	heldKeys = gauge("waybill_outbox_held_keys", "Keys blocked by an abandoned row until an operator decides.",
		func(h outbox.Held) float64 { return float64(h.Keys) }, "provider", "target")
	heldRows = gauge("waybill_outbox_held_rows", "Rows that wait behind those.",
		func(h outbox.Held) float64 { return float64(h.Behind) }, "provider", "target")
	refusedTotal = counter("waybill_http_refused_total", "Requests over HTTP that were refused, by why: they had no token, a wrong one, or one of another role, came from another site's page, by a proxy or from elsewhere although there is no token, or wanted to act although actions are off.",
		func(n int64) float64 { return float64(n) }, "reason")
	inState   = gauge("waybill_health", "1 for the state that the watchdog finds this process in, 0 for the others.", bit, "state")
	reasonsOf = gauge("waybill_health_reasons", "How many reasons health has for its state, by their code; a code without one has no series.",
		func(n int) float64 { return float64(n) }, "code")

	commandsTotal = counter("waybill_commands_total", "Commands by result: done, refused, failed attempts, expired, or stopped with their timer.",
		func(n int64) float64 { return float64(n) }, "context", "command", "result")
	commandDuration = histogram("waybill_command_duration_seconds", "Run time of command handlers, whatever the result.", "context", "command")

	timersWaiting = gauge("waybill_timers_waiting", "Timers that are not due yet, or not sent.", func(s timerdb.Stats) float64 { return float64(s.Waiting) }, "provider")
	timersLate    = gauge("waybill_timers_late_seconds", "Time since the earliest timer was due that is not sent; 0 if none is due.",
		func(s timerdb.Stats) float64 { return s.Late.Seconds() }, "provider")
	timersBroken = gauge("waybill_timers_broken", "Timers that are set aside, as their messages can't be sent.", func(s timerdb.Stats) float64 { return float64(s.Broken) }, "provider")

	outboxMetrics = []metric[outbox.Stats]{
		rows("pending", outbox.Pending, "Rows that wait to be published."),
		rows("processing", outbox.Processing, "Rows that a process has claimed."),
		rows("failed", outbox.Failed, "Rows that failed at least once and wait to be tried again."),
		rows("abandoned", outbox.Abandoned, "Rows that were given up and are retried only by an operator."),
		counter("waybill_outbox_published_total", "Rows published so far, by all processes.",
			func(s outbox.Stats) float64 { return float64(s.Counts[outbox.Published]) }, "provider", "target"),
		gauge("waybill_outbox_retry_rate", "Attempts that were retries, as a fraction of all attempts ever, by all processes.", outbox.Stats.RetryRate, "provider", "target"),
		gauge("waybill_outbox_oldest_pending_seconds", "Age of the oldest row that has not left; 0 if there is none.",
			func(s outbox.Stats) float64 {
				if s.OldestPending == nil {
					return 0
				}
				return s.OldestPending.Seconds()
			}, "provider", "target"),
		gauge("waybill_outbox_lease_owners", "Processes that hold partitions.",
			func(s outbox.Stats) float64 { return float64(len(s.LeaseOwners)) }, "provider", "target"),
		gauge("waybill_outbox_members", "Processes that publish, or would.", func(s outbox.Stats) float64 { return float64(len(s.Members)) }, "provider", "target"),
		gauge("waybill_outbox_members_sick", "Those of them that don't reach the broker: others that do have their partitions.", sickMembers, "provider", "target"),
		gauge("waybill_outbox_brokers_differ", "1 while its processes publish to different brokers, as health's `brokers_differ` says.",
			func(s outbox.Stats) float64 { return bit(outbox.BrokersDiffer(s.Members) != "") }, "provider", "target"),
	}

	processorRuns    = gauge("waybill_processor_running", "1 while this process publishes for the target.", bit, "provider", "target")
	processorMetrics = []metric[outbox.LaneStatus]{
		processor(gauge, "partitions", "Partitions that this process holds.", func(s outbox.LaneStatus) int { return s.Partitions }),
		processor(gauge, "in_flight", "Rows of this process that the broker has and has not acknowledged.", func(s outbox.LaneStatus) int { return s.InFlight }),
		processor(gauge, "breaker_open", "1 while the broker does not answer, also while it is being probed.",
			func(s outbox.LaneStatus) int { return int(bit(s.Breaker != "closed")) }),
		processor(gauge, "open_topics", "Topics that do not answer while others of the broker do.", func(s outbox.LaneStatus) int { return len(s.OpenTopics) }),
		processor(gauge, "suspect_keys", "Keys of calls that the broker did not answer: they are sent in small calls, so that the lane is slow on purpose.",
			func(s outbox.LaneStatus) int { return s.Suspects }),
		processor(gauge, "healthy", "1 while this process reaches the broker, as far as it knows; otherwise others that do have its partitions.",
			func(s outbox.LaneStatus) int { return int(bit(s.Healthy)) }),
		processor(gauge, "database_refused", "1 while the database, which answers, doesn't let it do something over and over: a right or a table is missing.",
			func(s outbox.LaneStatus) int { return int(bit(s.Database != nil)) }),
		processor(counter, "published_total", "Rows that this process has published.", func(s outbox.LaneStatus) int64 { return s.Published }),
		processor(counter, "attempts_total", "Attempts of this process that had an outcome; those of an outage cost nothing and don't count.",
			func(s outbox.LaneStatus) int64 { return s.Attempts }),
		processor(counter, "retries_total", "Attempts of this process that were not their row's first.", func(s outbox.LaneStatus) int64 { return s.Retries }),
		processor(counter, "taken_over_total", "Rows that another process had claimed and not settled.", func(s outbox.LaneStatus) int64 { return s.TakenOver }),
		processor(counter, "stale_total", "Rows whose result came too late to be recorded: their claim had been ended.",
			func(s outbox.LaneStatus) int64 { return s.Stale }),
		processor(counter, "order_breaks_total", "Rows that the broker stored although it had not stored an earlier one of their key.",
			func(s outbox.LaneStatus) int64 { return s.OrderBreaks }),
		processor(counter, "crashes_total", "Parts of the lane and calls of the broker that panicked. They start again.",
			func(s outbox.LaneStatus) int64 { return s.Crashes }),
	}

	latency = histogram("waybill_processor_publish_latency_seconds",
		"Time from when a row was stored to the broker's acknowledgement, of those that this process has published.", "provider", "target")

	subscriptionMetrics = []metric[subscription.Status]{
		consumer(gauge, "running", "1 while it is in its group, and its broker and database answer.", func(s subscription.Status) int64 { return int64(bit(s.Running)) }),
		consumer(gauge, "joined", "1 while it is in its group, and gets what comes or stands by.", func(s subscription.Status) int64 { return int64(bit(s.Joined)) }),
		consumer(gauge, "partitions", "Parts of the topic that this process has to itself; 0 also where the broker doesn't divide it.", func(s subscription.Status) int64 { return int64(s.Partitions) }),
		consumer(counter, "missed_total", "Messages that the broker removed before they were consumed: they are never handled.", func(s subscription.Status) int64 { return s.Missed }),
		consumer(gauge, "paused", "1 while an operator has paused it.", func(s subscription.Status) int64 { return int64(bit(s.Paused)) }),
		consumer(gauge, "breaker_open", "1 while every message fails, and they are tried one at a time.",
			func(s subscription.Status) int64 { return int64(bit(s.Open)) }),
		consumer(gauge, "database_refused", "1 while the database, which answers, doesn't let it do something over and over: a right or a table is missing.",
			func(s subscription.Status) int64 { return int64(bit(s.Database != nil)) }),
		consumer(gauge, "in_flight", "Messages received and not yet acknowledged.", func(s subscription.Status) int64 { return s.InFlight }),
		consumer(gauge, "waiting", "Messages taken whose key waits: for another attempt, or for room in dead_letters.", func(s subscription.Status) int64 { return s.Waiting }),
		consumer(gauge, "stalled", "1 while too many messages wait for others to be taken, and dead_letters is full.", func(s subscription.Status) int64 { return int64(bit(s.Stalled != "")) }),
		consumer(counter, "postponed_total", "Messages put into dead_letters because too many wait; they continue by themselves.", func(s subscription.Status) int64 { return s.Postponed }),
		consumer(counter, "handled_total", "Messages that took effect.", func(s subscription.Status) int64 { return s.Handled }),
		consumer(counter, "duplicates_total", "Deliveries of messages that had taken effect before.", func(s subscription.Status) int64 { return s.Duplicates }),
		consumer(counter, "ignored_total", "Messages without a handler.", func(s subscription.Status) int64 { return s.Ignored }),
		consumer(counter, "dropped_total", "Messages whose handler wanted no effect.", func(s subscription.Status) int64 { return s.Dropped }),
		consumer(counter, "parked_total", "Messages put into dead_letters, those behind a parked one among them.", func(s subscription.Status) int64 { return s.Parked }),
		consumer(counter, "replayed_total", "Dead letters that took effect.", func(s subscription.Status) int64 { return s.Replayed }),
		consumer(counter, "retries_total", "Attempts that were not a message's first.", func(s subscription.Status) int64 { return s.Retries }),
		consumer(counter, "beyond_horizon_total", "Messages handled that are older than anything the inbox still remembers.",
			func(s subscription.Status) int64 { return s.BeyondHorizon }),
	}
	lagKnown    = gauge("waybill_subscription_lag_known", "1 if this scrape has its lag in messages, 0 if that can't be known now; not there where the broker never says.", bit, "subscription")
	lagMessages = gauge("waybill_subscription_lag_messages", "Messages at the broker, of this process's share, that are not handled yet.",
		func(l subscription.Lag) float64 { return float64(l.Messages) }, "subscription")
	lagAge = gauge("waybill_subscription_lag_seconds", "Age of the oldest message taken and not finished; 0 if there is none.",
		func(l subscription.Lag) float64 { return l.Age.Seconds() }, "subscription")
)

func sickMembers(s outbox.Stats) (n float64) {
	for _, m := range s.Members {
		n += bit(!m.Healthy)
	}
	return n
}

func rows(name string, status outbox.Status, help string) metric[outbox.Stats] {
	return gauge("waybill_outbox_"+name, help, func(s outbox.Stats) float64 { return float64(s.Counts[status]) }, "provider", "target")
}

type kind[T any] func(name, help string, value func(T) float64, labels ...string) metric[T]

func processor[N int | int64](k kind[outbox.LaneStatus], name, help string, value func(outbox.LaneStatus) N) metric[outbox.LaneStatus] {
	return k("waybill_processor_"+name, help, func(s outbox.LaneStatus) float64 { return float64(value(s)) }, "provider", "target")
}

func consumer(k kind[subscription.Status], name, help string, value func(subscription.Status) int64) metric[subscription.Status] {
	return k("waybill_subscription_"+name, help, func(s subscription.Status) float64 { return float64(value(s)) }, "subscription")
}

// collector reads for a scrape what the API and health read, and no more often: scrapes
// don't load the database, nor wait for it for long.
type collector struct{ *Engine }

// Describe says nothing: what there is depends on what answers.
func (*collector) Describe(chan<- *prometheus.Desc) {}

// Collect reads everything at the same time.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	build := buildinfo.Read()
	built.send(to, true, build.Version, build.Revision, build.Go)
	var all sync.WaitGroup
	for _, d := range c.databases {
		all.Go(func() { c.outboxOf(d, to) })
		all.Go(func() { c.timersOf(d, to) })
		all.Go(func() { c.deadLettersOf(d, to) })
		all.Go(func() { c.processesOf(d, to) })
		all.Go(func() { c.projectionsOf(d, to) })
	}
	all.Go(func() { c.healthOf(to) })
	for reason, n := range c.refusals.count {
		refusedTotal.send(to, n.Load(), reason)
	}
	for _, h := range c.handlers {
		commandsOf(h, to)
	}
	for _, p := range c.processes {
		processesDid(p, to)
	}
	for _, s := range c.streams {
		send(to, subscriptionMetrics, s.runner.Status(), s.name)
		all.Go(func() { c.lagOf(s, to) })
	}
	h := c.health(c.lookouts.ctx)
	ready.send(to, h.Status == "ready" || h.Status == "degraded")
	for name, p := range h.Components.Providers {
		providerUp.send(to, p.OK != nil && *p.OK, name)
	}
	for name, b := range h.Components.Brokers {
		brokerUp.send(to, b.OK != nil && *b.OK, name)
	}
	all.Wait()
}

func (c *collector) outboxOf(d *database, to chan<- prometheus.Metric) {
	if !d.hasOutbox() {
		return // none
	}
	provider := d.provider.Name()
	result, known := d.stats.get(c.lookouts.ctx)
	counted.send(to, known && result.err == nil, provider)
	held, known := d.heldRows(c.lookouts.ctx, result.value)
	for target, s := range result.value {
		send(to, outboxMetrics, s, provider, target)
		if known {
			heldKeys.send(to, held[target], provider, target)
			heldRows.send(to, held[target], provider, target)
		}
	}
	status := d.status()
	for _, l := range d.lanes {
		s, known := status[l.Target]
		processorRuns.send(to, s.Running, provider, l.Target)
		if known {
			send(to, processorMetrics, s, provider, l.Target)
			sendHistogram(to, latency, s.Latencies, provider, l.Target)
		}
	}
}

func (c *collector) timersOf(d *database, to chan<- prometheus.Metric) {
	if !d.hasOutbox() {
		return // none
	}
	if result, known := d.late.get(c.lookouts.ctx); known && result.err == nil {
		timersWaiting.send(to, result.value, d.provider.Name())
		timersLate.send(to, result.value, d.provider.Name())
		timersBroken.send(to, result.value, d.provider.Name())
	}
}

func commandsOf(h *command.Handlers, to chan<- prometheus.Metric) {
	name := h.Units().Domain().Name()
	for _, n := range h.Counts() {
		commandsTotal.send(to, n.Done, name, n.Command, "done")
		commandsTotal.send(to, n.Refused, name, n.Command, "refused")
		commandsTotal.send(to, n.Failed, name, n.Command, "failed")
		commandsTotal.send(to, n.Expired, name, n.Command, "expired")
		commandsTotal.send(to, n.Stopped, name, n.Command, "stopped")
		sendHistogram(to, commandDuration, n.Took, name, n.Command)
	}
}

func (c *collector) healthOf(to chan<- prometheus.Metric) {
	found := c.diagnose(c.lookouts.ctx)
	for _, s := range []condition{healthy, degraded, stuck} {
		inState.send(to, s == found.State, string(s))
	}
	n := map[string]int{}
	for _, r := range found.Reasons {
		n[r.Code]++
	}
	for code, n := range n {
		reasonsOf.send(to, n, code)
	}
}

// deadLettersOf also shows those of subscriptions that run elsewhere, or no more.
func (c *collector) deadLettersOf(d *database, to chan<- prometheus.Metric) {
	mine, waiting := map[string]int64{}, map[string]int64{}
	for _, s := range c.streams {
		if s.provider == d.provider.Name() {
			mine[s.letters], waiting[s.letters] = 0, 0
		}
	}
	if len(mine) == 0 {
		return
	}
	result, known := d.dead.get(c.lookouts.ctx)
	if !known || result.err != nil {
		return
	}
	maps.Copy(mine, result.value.open)
	for name, n := range mine {
		deadLetters.send(to, n, d.provider.Name(), name)
	}
	maps.Copy(waiting, result.value.waiting)
	for name, n := range waiting {
		lettersWaiting.send(to, n, d.provider.Name(), name)
	}
}

func (c *collector) lagOf(s stream, to chan<- prometheus.Metric) {
	result, known := s.lag.get(c.lookouts.ctx)
	if !known || result.err != nil {
		lagKnown.send(to, false, s.name)
		return
	}
	lagAge.send(to, result.value, s.name)
	if result.value.Messages >= 0 { // the broker can say
		lagKnown.send(to, true, s.name)
		lagMessages.send(to, result.value, s.name)
	}
}
