package engine

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/waybill-go/waybill/internal/processdb"
	"github.com/waybill-go/waybill/process"
	"github.com/waybill-go/waybill/uow"
)

var (
	processesNow = gauge("waybill_processes", "Processes by status: those that run, those whose messages arrived before the one that starts them (awaited), and those that have ended and are still remembered.",
		func(n int64) float64 { return float64(n) }, "provider", "process", "status")
	processesIdle = gauge("waybill_processes_idle", "Running processes without a message for 30 days and without a timer: nothing will end them.",
		func(s processdb.Stats) float64 { return float64(s.Idle) }, "provider", "process")
	processOldest = gauge("waybill_process_oldest_running_seconds", "Age of the oldest process that runs; 0 if none does.", func(s processdb.Stats) float64 {
		if s.OldestSeconds == nil {
			return 0
		}
		return *s.OldestSeconds
	}, "provider", "process")
	processMetrics = []metric[process.Count]{
		processDid("started", "Processes that began.", func(n process.Count) int64 { return n.Started }),
		processDid("ended", "Processes that ended themselves.", func(n process.Count) int64 { return n.Ended }),
		processDid("heard", "Messages that took effect in processes.", func(n process.Count) int64 { return n.Heard }),
		processDid("early", "Messages that arrived before the one that starts their process, and were set aside for it.", func(n process.Count) int64 { return n.Early }),
		processDid("ignored", "Messages that came after their process had ended, or are optional and met none.", func(n process.Count) int64 { return n.Ignored }),
		processDid("stopped", "Timers that were stopped or moved while their message was on its way.", func(n process.Count) int64 { return n.Stopped }),
		processDid("refused", "Refusals of commands that processes were told of.", func(n process.Count) int64 { return n.Refused }),
	}
)

func processDid(name, help string, value func(process.Count) int64) metric[process.Count] {
	return counter("waybill_process_"+name+"_total", help, func(n process.Count) float64 { return float64(value(n)) }, "process")
}

// countProcesses also counts those of other programs.
func (d *database) countProcesses(ctx context.Context) (f found[map[string]processdb.Stats]) {
	f.value, f.err = d.instances.Stats(ctx)
	return f
}

// unheardProcesses are kinds of which some run, and for which no program hears.
func (d *database) unheardProcesses(ctx context.Context) (f found[[]string]) {
	f.value, f.err = d.instances.Unheard(ctx)
	return f
}

// lookForUnheard counts the running processes of this engine's contexts that nobody hears
// for, by name. In a rolling deployment another build still does for those that this one
// doesn't have; where this one has all that run, nobody is asked.
func (e *Engine) lookForUnheard(ctx context.Context, d *database, counts map[string]processdb.Stats) map[string]int64 {
	declared, all := e.withDeclared(d, nil), map[string]int64{}
	for name, n := range counts {
		context, _, _ := strings.Cut(name, ".")
		_, here := declared[name]
		if n.Running > 0 && !here && slices.ContainsFunc(e.cfg.Units, func(m *uow.Manager) bool { return m.Domain().Name() == context }) {
			all[name] = n.Running
		}
	}
	if len(all) == 0 {
		return nil
	}
	unheard, _ := d.unheard.recent(ctx)
	maps.DeleteFunc(all, func(name string, _ int64) bool { return !slices.Contains(unheard.value, name) })
	return all
}

// hasProcesses says whether the database is asked for processes: an observed one may not
// have their table.
func (e *Engine) hasProcesses(d *database) bool { return d.hasOutbox() && !d.observed }

// withDeclared adds those that this engine runs there and of which there is none now.
func (e *Engine) withDeclared(d *database, counts map[string]processdb.Stats) map[string]processdb.Stats {
	all := map[string]processdb.Stats{}
	for _, p := range e.processes {
		if p.Units().Providers()[0].Name() == d.provider.Name() {
			for _, name := range p.Names() {
				all[name] = processdb.Stats{}
			}
		}
	}
	maps.Copy(all, counts)
	return all
}

func (c *collector) processesOf(d *database, to chan<- prometheus.Metric) {
	if !c.hasProcesses(d) {
		return
	}
	result, known := d.running.get(c.lookouts.ctx)
	if !known || result.err != nil {
		return
	}
	provider := d.provider.Name()
	for name, s := range c.withDeclared(d, result.value) {
		processesNow.send(to, s.Running, provider, name, processdb.Running)
		processesNow.send(to, s.Awaited, provider, name, processdb.Awaited)
		processesNow.send(to, s.Ended, provider, name, processdb.Ended)
		processesIdle.send(to, s, provider, name)
		processOldest.send(to, s, provider, name)
	}
}

func processesDid(p *process.Processes, to chan<- prometheus.Metric) {
	context := p.Units().Domain().Name()
	for _, n := range p.Counts() {
		send(to, processMetrics, n, context+"."+n.Process)
	}
}
